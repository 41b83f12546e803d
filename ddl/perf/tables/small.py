"""LeNet for MNIST, Network in Network, and the dense network for speech of arXiv 1602.06709."""

from itertools import pairwise

from ddl.perf.tables.build import Conv, Dense, Pool, dense, sequence

# LeCun et al. 1998, as Caffe trains it: valid 5x5 convolutions, maximum pooling, 431,080 parameters.
lenet = sequence(
  28,
  1,
  Conv("conv1", 20, 5, same=False),
  Pool(2, 2),
  Conv("conv2", 50, 5, same=False),
  Pool(2, 2),
  Dense("ip1", 500),
  Dense("ip2", 10),
)

# Lin, Chen, Yan 2013, arXiv 1312.4400; the ImageNet model as in the nets of PALEO (224x224, conv1 not padded). The mean
# over the maps of cccp8 is the output.
nin = sequence(
  224,
  3,
  Conv("conv1", 96, 11, 4, same=False),
  Conv("cccp1", 96, 1),
  Conv("cccp2", 96, 1),
  Pool(3, 2),
  Conv("conv2", 256, 5),
  Conv("cccp3", 256, 1),
  Conv("cccp4", 256, 1),
  Pool(3, 2),
  Conv("conv3", 384, 3),
  Conv("cccp5", 384, 1),
  Conv("cccp6", 384, 1),
  Pool(3, 2),
  Conv("conv4", 1024, 3),
  Conv("cccp7", 1024, 1),
  Conv("cccp8", 1000, 1),
)

# 429 inputs (frames of speech), seven hidden layers of 2048, 9304 classes, as reported for arXiv 1602.06709.
_widths = (429, *[2048] * 7, 9304)
cd_dnn = tuple(dense(f"fc{i}", a, b) for i, (a, b) in enumerate(pairwise(_widths), 1))

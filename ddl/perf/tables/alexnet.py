"""AlexNet (Krizhevsky, Sutskever, Hinton 2012), ungrouped, and its one-column successor (arXiv 1404.5997)."""

from ddl.perf.tables.build import Conv, Dense, Pool, sequence

# The original has groups of 2 in conv2, conv4 and conv5 (61.0M parameters). Without them there are 62.4M: the 249 MB
# of arXiv 1708.02983.
alexnet = sequence(
  227,
  3,
  Conv("conv1", 96, 11, 4, same=False),
  Pool(3, 2),
  Conv("conv2", 256, 5),
  Pool(3, 2),
  Conv("conv3", 384, 3),
  Conv("conv4", 384, 3),
  Conv("conv5", 256, 3),
  Pool(3, 2),
  Dense("fc6", 4096),
  Dense("fc7", 4096),
  Dense("fc8", 1000),
)

# As in the nets of PALEO (Qi, Sparks, Talwalkar, ICLR 2017): conv1 is not padded, so that the last maps are 5x5.
alexnet_v2 = sequence(
  224,
  3,
  Conv("conv1", 64, 11, 4, same=False),
  Pool(3, 2),
  Conv("conv2", 192, 5),
  Pool(3, 2),
  Conv("conv3", 384, 3),
  Conv("conv4", 384, 3),
  Conv("conv5", 256, 3),
  Pool(3, 2),
  Dense("fc6", 4096),
  Dense("fc7", 4096),
  Dense("fc8", 1000),
)

"""Published training throughput over slow links, compared with the cost model: distant sites, and a throttled network.

  python run.py reproduce

The throughput of GPUs at several sites is predicted from that of as many GPUs at one site. For four hosts on one
network, the share of time spent computing is predicted for each bandwidth. Nothing is fitted. Expected: a median error
under 15 % for both. Takes a second.
"""

import ml_collections

GOOGLE = "arXiv 2306.03163 and its repository (cirquit/hivemind-multi-cloud)"
SHAPED = "repository Adnan082/diloco-measured, results of August 2026"
CV, NLP = "ConvNeXt-L", "RoBERTa-XLM"
# Number of GPUs -> examples per second at one site. The values for 3 and 6 GPUs, and for NLP with 4, are the paper's
# speed-ups per GPU (two digits) times the throughput of one GPU, which follows from the speed-up for 8 GPUs.
ONE_SITE = {
  CV: {2: 70.1, 3: 103.1, 4: 140.4, 6: 201.0, 8: 261.9},
  NLP: {2: 211.4, 3: 294.8, 4: 376.4, 6: 501.8, 8: 575.1},
}


def get_config():
  config = ml_collections.ConfigDict()
  config.google = ml_collections.ConfigDict()
  google = config.google
  google.source, google.examples = GOOGLE, 32768  # accumulated per step
  google.parameters = {CV: 197.8e6, NLP: 560.1e6}  # exchanged per step
  google.value_bytes = 2  # float16
  google.inside = {"bandwidth": 6.9e9 / 8, "ping": 0.7e-3}  # between two machines of a site: bytes/s, s
  google.sites = ("US", "EU", "Asia", "Australia")
  # One TCP stream between two machines, measured with iperf (bit/s) and ping (s).
  google.streams = {
    "US-EU": (0.21e9, 0.103), "US-Asia": (0.13e9, 0.157), "US-Australia": (0.12e9, 0.176), "EU-Asia": (0.08e9, 0.253),
    "EU-Australia": (0.07e9, 0.272), "Asia-Australia": (0.16e9, 0.131),
  }  # fmt: skip
  google.rates = ONE_SITE
  # (network, number of sites, GPUs per site, examples per second); percentages in the text are relative to ONE_SITE
  google.points = (
    (CV, 2, 1, 68.4), (CV, 2, 2, 135.8), (CV, 2, 4, 0.98 * 261.9), (CV, 3, 1, 0.95 * 103.1), (CV, 4, 1, 0.91 * 140.4),
    (CV, 3, 2, 0.93 * 201.0), (CV, 4, 2, 0.93 * 261.9), (NLP, 2, 1, 177.3), (NLP, 2, 4, 0.78 * 575.1),
    (NLP, 3, 1, 0.66 * 294.8), (NLP, 4, 1, 0.64 * 376.4), (NLP, 3, 2, 0.65 * 501.8), (NLP, 4, 2, 0.59 * 575.1),
  )  # fmt: skip
  config.shaped = ml_collections.ConfigDict()
  shaped = config.shaped
  shaped.source, shaped.hosts = SHAPED, 4
  shaped.nbytes = 4 * 30_846_720  # per exchange, in float32
  shaped.step = 0.0259  # seconds: mean of two runs without the exchange, 25.6 and 26.2 ms
  shaped.latency = 50e-6  # assumed
  shaped.bandwidths = (50e6, 200e6, 1e9, 5e9)  # bit/s
  # (steps per exchange, percentage of the time that a host computes at each bandwidth)
  shaped.shares = {
    "DiLoCo": (
      (1, (0.07, 0.32, 1.74, 7.76)), (8, (0.55, 2.48, 12.35, 40.24)), (32, (2.41, 10.01, 36.01, 68.10)),
      (128, (11.55, 36.09, 71.52, 87.00)),
    ),
    "local SGD": (
      (1, (0.07, 0.31, 1.69, 7.61)), (8, (0.52, 2.40, 11.83, 38.65)), (32, (2.30, 9.36, 33.65, 62.57)),
      (128, (10.81, 33.46, 65.56, 80.72)),
    ),
  }  # fmt: skip
  return config.lock()

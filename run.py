"""The commands of ddl. `python run.py` lists them; `python run.py <command> --help` shows a command's flags."""

import difflib
import os
import sys

COMMANDS = {
  "train": "one run of one algorithm: --config=configs/X.py --config.algorithm.name=dasgd ...",
  "compare": "several algorithms over several seeds, with a report: --config=configs/digits_compare.py",
  "sweep": "tune the learning rate of each algorithm with the same number of trials: --config=...",
  "scale": "predicted scaling curves on a cluster: --model=vgg_a --cluster=cori_fdr --nodes=1,2,...,128",
  "bench": "examples per second against a plain optax loop: [--only=...] [--json=FILE]",
  "netbench": "rounds over a slow link against the same without communication: --bandwidth=200mbit --latency=5ms",
  "plan": "examples, workers, servers, delay and period, and why: --config=... or --model=vgg_a, --cluster=cori_fdr",
  "dryrun": "the step compiled for devices that are not here: --config=... --topology=v5e:4x4 [--algorithms=a,b]",
  "calibrate": "measures this machine's steps and collectives: the cluster 'measured'; [--processes=2] [--json=FILE]",
  "reproduce": "docs/reproduction.md, the papers' speed-ups against predicted ones; [--check]",
  "tokenize": "token files of a text: --text=FILE --out=FOLDER [--level=bpe --vocabulary=4096]",
  "list": "the algorithms with their place in the taxonomy, the models and the data sets",
}


def usage() -> str:
  """The commands, one a line."""
  lines = [f"  {name:9} {text}" for name, text in COMMANDS.items()]
  return (
    "usage: python run.py COMMAND [flags]\n\n" + "\n".join(lines) + "\n\npython run.py COMMAND --help lists its flags."
  )


def main() -> int:
  """Dispatches to a command; returns the exit code."""
  command = sys.argv[1] if len(sys.argv) > 1 else "--help"
  if command in ("-h", "--help", "--helpfull", "help"):
    print(usage())
    return 0
  if command not in COMMANDS:
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    print(f"no command '{command}'; known are {', '.join(COMMANDS)}{hint}", file=sys.stderr)
    return 2
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  try:
    from experiments.command_line import cli  # only now: JAX takes a second to import
  except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in ("ddl", "experiments"):
      raise
    print(
      f"{error.name} is not installed here; python -m pip install -r requirements.txt, or make demo", file=sys.stderr
    )
    return 2

  return cli.run(command, sys.argv[2:])


if __name__ == "__main__":
  sys.exit(main())

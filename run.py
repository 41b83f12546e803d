"""The commands of ddl. `python run.py` lists them; `python run.py <command> --help` shows a command's flags."""

import difflib
import gc
import os
import sys

COMMANDS = {
  "train": "train with one algorithm: --config=configs/X.py --config.algorithm.name=dasgd ...",
  "compare": "compare algorithms over several seeds, with a report: --config=configs/digits_compare.py",
  "sweep": "tune the learning rate of each algorithm with the same number of trials: --config=...",
  "scale": "predict scaling curves on a cluster: --model=vgg_a --cluster=cori_fdr --nodes=1,2,...,128",
  "bench": "measure examples per second against a plain optax loop: [--only=...] [--json=FILE]",
  "netbench": "measure rounds over a slow link against rounds without communication: --bandwidth=200mbit --latency=5ms",
  "plan": "recommend algorithm, batch, workers and period: --config=... or --model=vgg_a, --cluster=cori_fdr",
  "dryrun": "compile the step for unavailable devices: --config=... --topology=v5e:4x4 [--algorithms=a,b]",
  "calibrate": "measure this machine's steps and collectives for the cluster 'measured': [--processes=2] [--json=FILE]",
  "reproduce": "compare published numbers with predictions, in experiments/papers/: [--check]",
  "tokenize": "convert a text to token files: --text=FILE --out=FOLDER [--level=bpe --vocabulary=4096]",
  "list": "list the algorithms (with their taxonomy), models, data sets and clusters",
}


def usage() -> str:
  """Return the usage message, with one line per command."""
  lines = [f"  {name:9} {text}" for name, text in COMMANDS.items()]
  return (
    "usage: python run.py COMMAND [flags]\n\n" + "\n".join(lines) + "\n\npython run.py COMMAND --help lists its flags."
  )


def main() -> int:
  """Run the command in sys.argv; return the exit code."""
  command = sys.argv[1] if len(sys.argv) > 1 else "--help"
  if command in ("-h", "--help", "--helpfull", "help"):
    print(usage())
    return 0
  if command not in COMMANDS:
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    print(f"unknown command '{command}'; the commands are {', '.join(COMMANDS)}{hint}", file=sys.stderr)
    return 2
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  gc.set_threshold(100_000, 20, 20)  # with the defaults, garbage collection takes half a second during the imports
  try:
    from experiments.command_line import cli  # not at the top: JAX takes a second to import
  except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in ("ddl", "experiments"):
      raise
    print(
      f"{error.name} is not installed; run python -m pip install -r requirements.txt, or run make demo", file=sys.stderr
    )
    return 2

  code = cli.run(command, sys.argv[2:])
  gc.freeze()  # otherwise Python searches all objects for cycles at exit, which takes half a second
  return code


if __name__ == "__main__":
  sys.exit(main())

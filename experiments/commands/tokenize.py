"""`python run.py tokenize`: token files of a text, which `config.data.name=tokens` reads.

By bytes, by byte pairs that are learnt from the text (`pip install -r requirements-tokenize.txt`), or by those of a
tokenizer.json. The last tenth of the text is for the test.
"""

import time
from pathlib import Path

from absl import flags

from ddl.data import tokenizer
from ddl.errors import OptionError
from ddl.perf.units import bytes_text
from ddl.run.workdir import writable
from experiments.command_line.config_flag import CommandLine

TEXT = flags.DEFINE_string("text", "", "the text, a file")
OUT = flags.DEFINE_string("out", "", "folder for train.bin, val.bin and meta.json, made where there is none")
LEVEL = flags.DEFINE_enum("level", "byte", tokenizer.LEVELS, "a token is a byte, or a byte pair encoding's")
VOCABULARY = flags.DEFINE_integer("vocabulary", 0, "number of tokens of --level=bpe, e.g. 4096", lower_bound=0)
TOKENIZER = flags.DEFINE_string("tokenizer", "", "tokenizer.json of byte pairs learnt elsewhere, for --level=bpe")
VALIDATION = flags.DEFINE_float("validation", 0.1, "share of the text, its end, for the test")


def main(_line: CommandLine) -> int:
  """Write the files and say what they hold; return the exit code."""
  if not TEXT.value or not OUT.value:
    raise OptionError("text and out", "set: --text=FILE, and --out=FOLDER for its token files")
  writable(Path(OUT.value), "out")
  began = time.perf_counter()
  tokens = tokenizer.write(
    TEXT.value, OUT.value, level=LEVEL.value, vocabulary=VOCABULARY.value, tokenizer=TOKENIZER.value,
    validation=VALIDATION.value,
  )  # fmt: skip
  rate = tokens.nbytes / (tokens.train + tokens.test)
  print(
    f"{OUT.value}: {tokens.train:,} tokens in train.bin and {tokens.test:,} in val.bin, {tokens.vocabulary:,} "
    f"different ones as {tokens.dtype}; {bytes_text(tokens.nbytes)} of text at {rate:.3g} bytes a token, in "
    f"{time.perf_counter() - began:.1f} s\n"
    f"train on them: python run.py train --config=configs/gpt2_tokens.py --config.data.path={OUT.value}"
  )
  return 0

"""`python run.py tokenize`: convert a text to token files for `config.data.name=tokens`.

Tokens are bytes, or those of a byte pair encoding that is trained on the text or read from a tokenizer.json. A byte
pair encoding requires requirements-tokenize.txt. By default the last tenth of the text is for validation.
"""

import time
from pathlib import Path

from absl import flags

from ddl.data import tokenizer
from ddl.errors import OptionError
from ddl.perf.units import bytes_text
from ddl.run.workdir import writable
from experiments.command_line.config_flag import CommandLine

TEXT = flags.DEFINE_string("text", "", "text file to tokenize")
OUT = flags.DEFINE_string("out", "", "folder for train.bin, val.bin and meta.json; it is created if missing")
LEVEL = flags.DEFINE_enum("level", "byte", tokenizer.LEVELS, "bytes as tokens (byte), or a byte pair encoding (bpe)")
VOCABULARY = flags.DEFINE_integer("vocabulary", 0, "vocabulary size for --level=bpe, such as 4096", lower_bound=0)
TOKENIZER = flags.DEFINE_string("tokenizer", "", "tokenizer.json of a trained byte pair encoding, for --level=bpe")
VALIDATION = flags.DEFINE_float("validation", 0.1, "share of the text, at its end, for validation")


def main(_line: CommandLine) -> int:
  """Write the token files and print their sizes; return the exit code."""
  if not TEXT.value or not OUT.value:
    raise OptionError("text and out", "set with --text=FILE and --out=FOLDER")
  writable(Path(OUT.value), "out")
  began = time.perf_counter()
  tokens = tokenizer.write(
    TEXT.value, OUT.value, level=LEVEL.value, vocabulary=VOCABULARY.value, tokenizer=TOKENIZER.value,
    validation=VALIDATION.value,
  )  # fmt: skip
  rate = tokens.nbytes / (tokens.train + tokens.test)
  print(
    f"{OUT.value}: {tokens.train:,} tokens in train.bin and {tokens.test:,} in val.bin, vocabulary "
    f"{tokens.vocabulary:,}, {tokens.dtype}; {bytes_text(tokens.nbytes)} of text at {rate:.3g} bytes per token, in "
    f"{time.perf_counter() - began:.1f} s\n"
    f"train on them: python run.py train --config=configs/gpt2_tokens.py --config.data.path={OUT.value}"
  )
  return 0

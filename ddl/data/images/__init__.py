"""Sets of images: their files, decoding, and what is done to a picture."""

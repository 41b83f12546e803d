"""Jobs that are disturbed at random, whose results are compared with those of one that was not."""

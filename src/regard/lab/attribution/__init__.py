"""Attribution: which parts of the input a prediction came from."""

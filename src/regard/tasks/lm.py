class Lm:
    pass

"""A plug-in of pytest for llama.cpp's server tests: they download no models, since each gets the one that is there."""


def pytest_configure():
    import utils

    utils.ServerPreset.load_all = staticmethod(lambda: None)

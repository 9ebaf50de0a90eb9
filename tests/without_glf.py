"""The beginning of a program that must not use glf: importing it fails."""

WITHOUT_GLF = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "glf":
            raise ImportError("glf is not here")

sys.meta_path.insert(0, Refuse())
try:
    import glf
    raise SystemExit("glf is here")
except ImportError:
    pass
"""

"""Features in, numbers out: pure functions that training's probe and evaluation both call."""

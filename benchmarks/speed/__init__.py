"""Speed of everything but the backbone, next to peers and limits: see __main__.py."""

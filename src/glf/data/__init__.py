"""From a name or a path to decoded images, and from images to augmented views."""

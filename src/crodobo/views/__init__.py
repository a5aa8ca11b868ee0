"""Views of images: weak and strong."""

"""The HTTP service: it adapts to the images it receives, predicts them and erases them."""

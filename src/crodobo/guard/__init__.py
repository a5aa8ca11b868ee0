"""What keeps a stream from harming the learners."""

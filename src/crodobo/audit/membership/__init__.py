"""Do a model's weights tell who was in its stream? Shadow runs, attacks on them, and what the attacks come to.

For benchmarks and labelled data of one's own: every sample is met many times and its scores are kept, which a private
stream forbids.
"""

"""Membership audit: do a model's weights reveal which samples were in its stream? Shadow runs, attacks, results.

For benchmarks and your own labelled data: every sample is processed many times and its scores are kept, which a private
stream forbids.
"""

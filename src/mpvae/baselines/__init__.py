"""The methods the MPVAE paper compares with, each from its own paper, as classifiers."""

"""What one aggregator's operator watches: a page of this machine over its store and its own pages, read and no more."""

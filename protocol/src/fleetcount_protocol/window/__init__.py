"""The counting question: what it is, when it may be asked, its bytes and its signatures."""

"""Takagi et al., Asymmetric Differential Privacy [ADP]: experiments and claims."""

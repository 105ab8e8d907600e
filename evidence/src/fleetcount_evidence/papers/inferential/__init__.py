"""Wang et al., Inferential or Differential: Privacy Laws Dictate [INF]: experiments and claims."""

"""F'-privacy buckets: publish a table as two tables so that no sensitive value is too likely in any bucket.

Anonymised, not differentially private; needs a trusted holder of the table (docs/privacy.md). Source: Wang et al.,
Inferential or Differential: Privacy Laws Dictate, sections 3 to 6.
"""

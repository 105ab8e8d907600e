"""F'-privacy buckets: publish a table in two halves so that no sensitive value is too likely in any bucket.

Anonymised, not differentially private; needs a trusted holder of the table (docs/privacy.md). Source: Wang et al.,
Inferential or Differential: Privacy Laws Dictate, sections 3 to 6.
"""

from fleetcount_evidence.buckets.anatomy import anatomy_buckets, anatomy_loss, anatomy_possible, equivalent_diversity
from fleetcount_evidence.buckets.assignment import Bucket, assign, partition, round_robin
from fleetcount_evidence.buckets.corruption import choose_fakes, exclusion_certainty, negative_associations
from fleetcount_evidence.buckets.multi_size import multi_size_bucketing
from fleetcount_evidence.buckets.optimum import optimal_bucketing
from fleetcount_evidence.buckets.pairs import PairList
from fleetcount_evidence.buckets.queries import CodedTable, CountQuery, average_relative_error, random_queries
from fleetcount_evidence.buckets.setting import BucketSetting, SensitiveValues, Size, linear_thresholds
from fleetcount_evidence.buckets.two_size import Pruning, two_size_bucketing
from fleetcount_evidence.buckets.validity import naive_conditions_hold, setting_is_valid

__all__ = [
    "Bucket",
    "BucketSetting",
    "CodedTable",
    "CountQuery",
    "PairList",
    "Pruning",
    "SensitiveValues",
    "Size",
    "anatomy_buckets",
    "anatomy_loss",
    "anatomy_possible",
    "assign",
    "average_relative_error",
    "choose_fakes",
    "equivalent_diversity",
    "exclusion_certainty",
    "linear_thresholds",
    "multi_size_bucketing",
    "naive_conditions_hold",
    "negative_associations",
    "optimal_bucketing",
    "partition",
    "random_queries",
    "round_robin",
    "setting_is_valid",
    "two_size_bucketing",
]

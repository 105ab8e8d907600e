"""The randomizers, noise laws and privacy accounting of the four papers, exact and in the standard library only.

It must not load more than is asked for: every public name is imported on first use, so a device
pays for its own mechanism alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "FEWEST_AGGREGATORS",
    "LARGEST_EPSILON",
    "MOST_AGGREGATORS",
    "SMALLEST_EPSILON",
    "AdversaryView",
    "Answer",
    "AnswerForm",
    "AnswerKind",
    "AsymmetricGeometric",
    "AsymmetricSparseVector",
    "AttributePolicy",
    "BlowfishPolicy",
    "BoundedGeometric",
    "CoinShape",
    "Design",
    "DigitThresholds",
    "Direction",
    "EverythingProtected",
    "ExponentialCoin",
    "ExtremesExample",
    "Guarantee",
    "InfeasibleTargetError",
    "Intersection",
    "KaryResponse",
    "Mangat",
    "MangatVector",
    "Mark",
    "MechanismError",
    "Monotonicity",
    "Neighbours",
    "NoNoise",
    "NoiseLaw",
    "OneSidedGeometric",
    "OneSidedNoise",
    "OneSidedPolicy",
    "OptimizedUnaryEncoding",
    "OrPolicy",
    "Outputs",
    "PlainSparseVector",
    "Plan",
    "Policy",
    "RandomSource",
    "RandomizedResponse",
    "Relation",
    "SampledTwoCoin",
    "SamplingAndNoise",
    "SamplingDie",
    "SanitizedSparseVector",
    "SeededRandom",
    "SystemRandom",
    "Truth",
    "TwoCoin",
    "TwoRoundAnswer",
    "TwoSidedGeometric",
    "TwoSidedNoise",
    "UniformBelow",
    "VectorPolicy",
    "Warner",
    "WeightedChoice",
    "absolute_loss",
    "affordable_queries",
    "answer_named",
    "answer_names",
    "approximate_detection",
    "approximate_detection_paper",
    "approximate_dp_delta_required",
    "asymmetric_optimal_epsilon",
    "asymmetric_row",
    "asymmetric_sparse_law",
    "basic_epsilon",
    "bernoulli",
    "blowfish_revealing_law",
    "blowfish_widest_one_sided",
    "bounded_geometric_matrix",
    "bounded_geometric_row",
    "central_delta",
    "compose_asymmetric",
    "crossover_share",
    "databases",
    "default_sampling_rate",
    "die_for_local_epsilons",
    "digit_thresholds",
    "dp_epsilon_required",
    "estimate",
    "estimate_baseline",
    "exact_loss_ratio",
    "exp_minus_bounds",
    "expected_correct_safe",
    "expected_loss",
    "expected_safe_answers",
    "expected_safe_answers_approximate",
    "exposure",
    "extremes_example",
    "figure_two",
    "find_boolean_policy",
    "is_neighbour",
    "k_ary_sd",
    "largest_sampling_rate",
    "linked_delta",
    "local_sampling_rate",
    "mangat_sd",
    "message_epsilon",
    "message_epsilon_binary",
    "message_epsilon_of_face",
    "minimum_path",
    "monotonicity",
    "neighbours",
    "neighbours_of",
    "noise_epsilon_for",
    "noise_epsilon_one_cell",
    "noise_epsilon_two_cell",
    "noise_for",
    "noisy_sum_detection",
    "noisy_sum_law",
    "optimal_delta",
    "optimal_detection",
    "optimal_epsilon",
    "optimal_epsilon_per_query",
    "optimal_epsilon_repeated",
    "osdp_required_non_sensitive",
    "osdp_revealing_law",
    "place_policy",
    "plan_question",
    "plan_sampling",
    "predicted_sd",
    "ratio_above",
    "register_answer",
    "release_epsilon_one_cell",
    "release_epsilon_two_cell",
    "release_sd",
    "released_loss",
    "remapped",
    "response_release_epsilon",
    "risk",
    "risk_bound_visited",
    "safe_law",
    "sampling_rate_for_local_epsilon",
    "sampling_sd",
    "sanitized_law",
    "sensitivity",
    "simulation_only_asymmetric_laplace",
    "simulation_only_can_come_from",
    "simulation_only_laplace",
    "simulation_only_safe_detection",
    "single_device_losses",
    "toss",
    "two_coin_sd",
    "unary_sd",
    "uniform_below",
    "uniform_many_below",
    "vector_place_policy",
    "warner_sd",
    "weighted_index",
    "worst_case_risk",
    "zero_one_loss",
]

if TYPE_CHECKING:
    from fleetcount_mechanisms.answers import (
        AnswerForm,
        AnswerKind,
        Relation,
        Truth,
        answer_named,
        answer_names,
        register_answer,
    )
    from fleetcount_mechanisms.asymmetric import (
        AsymmetricGeometric,
        Direction,
        OneSidedGeometric,
        approximate_detection,
        approximate_detection_paper,
        asymmetric_row,
        expected_safe_answers,
        expected_safe_answers_approximate,
        noisy_sum_detection,
        noisy_sum_law,
        optimal_detection,
        ratio_above,
        safe_law,
        simulation_only_asymmetric_laplace,
        simulation_only_can_come_from,
        simulation_only_laplace,
        simulation_only_safe_detection,
    )
    from fleetcount_mechanisms.bounded_geometric import (
        BoundedGeometric,
        ExtremesExample,
        absolute_loss,
        bounded_geometric_matrix,
        bounded_geometric_row,
        expected_loss,
        extremes_example,
        figure_two,
        remapped,
        single_device_losses,
        zero_one_loss,
    )
    from fleetcount_mechanisms.composition import (
        Guarantee,
        affordable_queries,
        asymmetric_optimal_epsilon,
        basic_epsilon,
        compose_asymmetric,
        optimal_delta,
        optimal_epsilon,
        optimal_epsilon_per_query,
        optimal_epsilon_repeated,
    )
    from fleetcount_mechanisms.design import FEWEST_AGGREGATORS, MOST_AGGREGATORS, Design, Outputs
    from fleetcount_mechanisms.errors import InfeasibleTargetError, MechanismError
    from fleetcount_mechanisms.exponential import CoinShape, ExponentialCoin, exp_minus_bounds
    from fleetcount_mechanisms.geometric import (
        LARGEST_EPSILON,
        SMALLEST_EPSILON,
        DigitThresholds,
        TwoSidedGeometric,
        digit_thresholds,
    )
    from fleetcount_mechanisms.loss_formulas import (
        Neighbours,
        central_delta,
        exposure,
        linked_delta,
        message_epsilon,
        message_epsilon_binary,
        message_epsilon_of_face,
        neighbours_of,
        noise_epsilon_for,
        noise_epsilon_one_cell,
        noise_epsilon_two_cell,
        release_epsilon_one_cell,
        release_epsilon_two_cell,
        release_sd,
        sampling_sd,
    )
    from fleetcount_mechanisms.losses import noise_for, released_loss, response_release_epsilon
    from fleetcount_mechanisms.noise import NoiseLaw, NoNoise, OneSidedNoise, TwoSidedNoise
    from fleetcount_mechanisms.osdp import (
        BlowfishPolicy,
        OneSidedPolicy,
        approximate_dp_delta_required,
        blowfish_revealing_law,
        blowfish_widest_one_sided,
        dp_epsilon_required,
        osdp_required_non_sensitive,
        osdp_revealing_law,
    )
    from fleetcount_mechanisms.planning import (
        Plan,
        crossover_share,
        default_sampling_rate,
        die_for_local_epsilons,
        largest_sampling_rate,
        local_sampling_rate,
        plan_question,
        plan_sampling,
        predicted_sd,
        sampling_rate_for_local_epsilon,
    )
    from fleetcount_mechanisms.policies import (
        AttributePolicy,
        EverythingProtected,
        Intersection,
        Monotonicity,
        OrPolicy,
        Policy,
        VectorPolicy,
        databases,
        exact_loss_ratio,
        find_boolean_policy,
        is_neighbour,
        minimum_path,
        monotonicity,
        neighbours,
        place_policy,
        risk,
        risk_bound_visited,
        sensitivity,
        vector_place_policy,
        worst_case_risk,
    )
    from fleetcount_mechanisms.randomness import (
        RandomSource,
        SeededRandom,
        SystemRandom,
        UniformBelow,
        WeightedChoice,
        bernoulli,
        uniform_below,
        uniform_many_below,
        weighted_index,
    )
    from fleetcount_mechanisms.responses import (
        KaryResponse,
        Mangat,
        MangatVector,
        OptimizedUnaryEncoding,
        RandomizedResponse,
        TwoCoin,
        Warner,
        k_ary_sd,
        mangat_sd,
        two_coin_sd,
        unary_sd,
        warner_sd,
    )
    from fleetcount_mechanisms.sampling import SamplingDie, TwoRoundAnswer, estimate, estimate_baseline, toss
    from fleetcount_mechanisms.sparse_vector import (
        Answer,
        AsymmetricSparseVector,
        Mark,
        PlainSparseVector,
        SanitizedSparseVector,
        asymmetric_sparse_law,
        expected_correct_safe,
        sanitized_law,
    )
    from fleetcount_mechanisms.statement import AdversaryView
    from fleetcount_mechanisms.toys import SampledTwoCoin, SamplingAndNoise

_MODULES = {
    "answers": ("AnswerForm AnswerKind Relation Truth answer_named answer_names register_answer"),
    "asymmetric": (
        "AsymmetricGeometric Direction OneSidedGeometric approximate_detection "
        "approximate_detection_paper asymmetric_row expected_safe_answers "
        "expected_safe_answers_approximate noisy_sum_detection noisy_sum_law optimal_detection "
        "ratio_above safe_law simulation_only_asymmetric_laplace simulation_only_can_come_from "
        "simulation_only_laplace simulation_only_safe_detection"
    ),
    "bounded_geometric": (
        "BoundedGeometric ExtremesExample absolute_loss bounded_geometric_matrix bounded_geometric_row "
        "expected_loss extremes_example figure_two remapped single_device_losses zero_one_loss"
    ),
    "composition": (
        "Guarantee affordable_queries asymmetric_optimal_epsilon basic_epsilon compose_asymmetric "
        "optimal_delta optimal_epsilon optimal_epsilon_per_query optimal_epsilon_repeated"
    ),
    "design": ("Design FEWEST_AGGREGATORS MOST_AGGREGATORS Outputs"),
    "errors": ("InfeasibleTargetError MechanismError"),
    "exponential": ("CoinShape ExponentialCoin exp_minus_bounds"),
    "geometric": ("DigitThresholds LARGEST_EPSILON SMALLEST_EPSILON TwoSidedGeometric digit_thresholds"),
    "loss_formulas": (
        "Neighbours central_delta exposure linked_delta message_epsilon message_epsilon_binary "
        "message_epsilon_of_face neighbours_of noise_epsilon_for noise_epsilon_one_cell "
        "noise_epsilon_two_cell release_epsilon_one_cell release_epsilon_two_cell release_sd sampling_sd"
    ),
    "losses": ("noise_for released_loss response_release_epsilon"),
    "noise": ("NoNoise NoiseLaw OneSidedNoise TwoSidedNoise"),
    "osdp": (
        "BlowfishPolicy OneSidedPolicy approximate_dp_delta_required blowfish_revealing_law "
        "blowfish_widest_one_sided dp_epsilon_required osdp_required_non_sensitive osdp_revealing_law"
    ),
    "planning": (
        "Plan crossover_share default_sampling_rate die_for_local_epsilons largest_sampling_rate "
        "local_sampling_rate plan_question plan_sampling predicted_sd sampling_rate_for_local_epsilon"
    ),
    "policies": (
        "AttributePolicy EverythingProtected Intersection Monotonicity OrPolicy Policy VectorPolicy "
        "databases exact_loss_ratio find_boolean_policy is_neighbour minimum_path monotonicity "
        "neighbours place_policy risk risk_bound_visited sensitivity vector_place_policy worst_case_risk"
    ),
    "randomness": (
        "RandomSource SeededRandom SystemRandom UniformBelow WeightedChoice bernoulli uniform_below "
        "uniform_many_below weighted_index"
    ),
    "responses": (
        "KaryResponse Mangat MangatVector OptimizedUnaryEncoding RandomizedResponse TwoCoin Warner "
        "k_ary_sd mangat_sd two_coin_sd unary_sd warner_sd"
    ),
    "sampling": ("SamplingDie TwoRoundAnswer estimate estimate_baseline toss"),
    "sparse_vector": (
        "Answer AsymmetricSparseVector Mark PlainSparseVector SanitizedSparseVector "
        "asymmetric_sparse_law expected_correct_safe sanitized_law"
    ),
    "statement": ("AdversaryView"),
    "toys": ("SampledTwoCoin SamplingAndNoise"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # Type checkers see the imports above, so that a misspelt name is an error to them.

    def __getattr__(name: str) -> object:
        """Import a public name on first use."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))

"""All numbers of the tuning of chains and of the checks of their steps, with the reason of each.

The equations are in docs/explanation/tuning.md, the stages in `tuning.schedule.STAGES`. These numbers decide the cost
of chains, and when steps count as too long. The posterior does not depend on them.
"""

import math

# Coordinates (`precondition`).
BANDS = 12  # bands of the wavenumber, of equal width in its logarithm: widths change by little from one to the next
CLASSES = 5  # classes of the component along the line of sight: 0, 1, 2, 4, 8 or more fundamental modes
LARGEST_CURVATURE = 4.0  # after scaling; MCLMC at its target step is stable up to about ten
CURVATURE_DIFFERENCE = 0.5  # half the difference of a parameter, in linear theory's scales: about one posterior width
SLOPE = 0.3  # expected slope of the logarithm of a mean with a whitened parameter: exp(SLOPE u) stays about 1
RIDGE = 0.01  # share of its variance added to each regressor, so that those without data get no coefficient
PARTS_OF_CHAIN = 8  # parts of the gradients of a chain, longer than their autocorrelation

# Blocks and steps (`tuning.schedule`).
SHORTEST = 40  # steps of the shortest tuning: eight blocks of five
BLOCK = 20  # steps with one step size: the variance of their error is known to a third
TRAJECTORIES = 5  # trajectories of a block of HMC, each of many steps
TRAJECTORY = math.pi / 2  # mean length of the trajectories of HMC: a quarter of the period of unit variances
FIRST_STEP = 0.05  # per root of the dimensions: stable for curvatures up to a thousand
FIRST_OF_TRAJECTORY = 0.4  # first step of HMC relative to that of MCLMC, as errors add up along a trajectory
ENERGY_VARIANCE = 1e-3  # target for a step of MCLMC, per dimension
ENERGY_VARIANCES = 1e-15, 2e-3  # range of the target: beyond it steps are unstable
TRAJECTORY_VARIANCE = 0.26  # target for a trajectory of HMC: 80 % are accepted
TAIL = 0.1  # quantile of the steps of MCLMC that chains ask for: each step is accepted, also where it is too long
LARGEST_CHANGE = math.log(2)  # largest change of the logarithm of the step from one block to the next
UNSTABLE, UNSTABLE_LATE = 100.0, 10.0  # variance of an unstable block per target; late, when chains have settled
LARGEST_STABLE, AFTER_UNSTABLE = 0.8, 0.5  # largest step to try and next step, relative to an unstable step

# Stability (`tuning.loop`).
LARGEST_PHASE = 1.6  # step per root of the dimensions, times the root of the curvature, which varies; 2 is unstable
AWAY = 2.5  # distance from the mean of a parameter [standard deviations]: 1 % of the draws are farther
ASIDE = 0.5  # half the distance of a difference of gradients, about the distance of a step along one direction
ITERATIONS, FURTHER = 12, 2  # power iterations at positions; at extremes, where directions are nearly known

# Ranges of numbers of likelihoods (`gaussian`, `poisson`).
SLOPES = -1.0, 10.0  # changes of a Gaussian variance with the density that are numbers
LARGEST_DISPERSION = 100.0  # variance of counts beyond Poisson's [squared mean]

# Checks of the draws (`chain.diagnostics`, `sampling`).
LARGEST_BIAS = 0.05  # discretisation bias of a mean to correct once and to warn of [standard deviations]
LARGEST_REMAINDER = 0.2  # bias after a correction for which chains start over again: the draws are worth more
LARGEST_WIDTH_BIAS = 0.03  # discretisation bias of a standard deviation for which steps are too long
CHAIN_VARIANCE, TAIL_VARIANCE = 4.0, 30.0  # energy variance per target for too long steps: of a chain, of a part of it
PARTS = 20  # parts of the draws, in the order of a parameter: the outer ones are tails of 5 %
UNMIXED, FEWEST_EFFECTIVE = 1.1, 40  # R-hat, and effective draws, of chains that show no bias
LEAST_LEFT = 0.2  # smallest share of a variance within chains that are far from one another
SHORTER, AIM = 0.75, 0.8  # factor of unstable steps, and aim relative to the largest bias
SHORTEST_FACTOR = 0.4  # smallest factor of steps with a bias, whose estimate has an error
FEWEST_STEPS = 40  # steps that show the variance of the energy error
FEW_FAILURES = 1e-3  # share of failed steps that is no matter
MOST_RESTARTS = 6  # number of times that chains start over at most
MOST_REPEATS = 3  # number of times that a chunk in which chains diverge is drawn again at most

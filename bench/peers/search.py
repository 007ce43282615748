"""Finds the best of a server's settings, one factor at a time, by the measure that is shown."""

import dataclasses
import statistics

#: So many of the best are measured until they have enough runs for the choice.
FINALISTS = 3


class Failed(Exception):
    """A setting gave no figure; the message says why."""


@dataclasses.dataclass
class Trial:
    """A setting, by factor, and what came of it: the values of its runs, or why there are none."""

    setting: dict
    values: list
    failure: str | None = None

    def words(self):
        return words(self.setting)

    def median(self):
        return statistics.median(self.values)


def words(setting):
    """The command line words of a setting."""
    return [word for level in setting.values() for word in level]


def best_setting(factors, measure, *, less_is_better, runs, has_time=lambda: True):
    """The trial of the best setting (None if all failed), all trials, and the settings that there was no time for.

    `factors`: by name, the levels of each factor, a level being words of a command line; the first is where the search
    begins. `measure(setting, runs)` gives so many values, or raises Failed. Each factor is varied alone, one run for
    each level, and its best level is kept. The best settings of all are then measured until each has `runs` values,
    and the best median wins, so that no single lucky run decides.
    """
    trials, untried = [], []
    better = (lambda a, b: a < b) if less_is_better else (lambda a, b: a > b)

    def tried(setting):
        for trial in trials:
            if trial.setting == setting:
                return trial
        trials.append(trial := Trial(setting, []))
        more(trial, 1)
        return trial

    def more(trial, count):
        try:
            trial.values += measure(trial.setting, count)
        except Failed as failure:
            trial.failure = str(failure)

    best = tried({name: levels[0] for name, levels in factors.items()})
    for name, levels in factors.items():
        start = best
        for level in levels[1:]:
            setting = {**start.setting, name: level}
            # Without any figure yet, the search goes on though time is up.
            if not has_time() and best.failure is None:
                untried.append(setting)
                continue
            trial = tried(setting)
            if trial.failure is None and (best.failure is not None or better(trial.median(), best.median())):
                best = trial

    working = lambda: sorted((trial for trial in trials if trial.failure is None), key=Trial.median,
                             reverse=not less_is_better)
    for trial in working()[:FINALISTS]:
        if len(trial.values) < runs:
            more(trial, runs - len(trial.values))
    # A finalist may have failed in its further runs: then the next one needs them.
    while (ranked := [trial for trial in working() if len(trial.values) >= runs]) == [] and working():
        trial = working()[0]
        more(trial, runs - len(trial.values))
    return (ranked[0] if ranked else None), trials, untried

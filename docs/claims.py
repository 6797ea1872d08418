"""What the papers say, and what of it is so here: ``python docs/claims.py`` writes docs/claims.md anew.

The claims are data (claims.toml). What came out is worked out from files wherever there are any: the shipped score
tables, the configurations, the results of studies (docs/studies) and of evaluations (docs/measured). A test sees to it
that the page is that of the files, and that every test and page which a claim names exists.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from random_play import rows as random_play_rows

from hpcrl.analysis.scores import beats, normalise, reaches, sign_flips, table
from hpcrl.config import load

ROOT = Path(__file__).parents[1]
CLAIMS, PAGE = ROOT / "docs" / "claims.toml", ROOT / "docs" / "claims.md"
STUDIES, MEASURED = ROOT / "docs" / "studies", ROOT / "docs" / "measured"
PAPERS = {
    "gorila": "Massively Parallel Methods (Gorila, Nair et al. 2015)",
    "accelerated": "Accelerated Methods (Stooke and Abbeel 2018)",
}

SO, SMALL, SET = "reproduced", "reproduced in small", "set as published"
NOT, OPEN = "not reproduced", "not tested yet"
MEANING = {
    SO: "a test fails if it is not so, or it follows from the published scores that are shipped",
    SMALL: "so on a small task; what came out is here and on the page named",
    SET: "a shipped configuration has the published value; it has not been run at that scale",
    NOT: "it came out otherwise on the task named, or hpcrl does something else",
    OPEN: "a machine like this one could show it; nobody has yet",
    "not testable here": "needs a cluster, GPUs or weeks",
}
Found = tuple[str, str]
"""The verdict, one of :data:`MEANING`, and what came out."""
ALIKE = 0.1
"""Returns of catch, from -1 to 1, that differ by less are alike."""
BUNDLES = ("serial DQN", "1 bundle", "2 bundles", "4 bundles", "8 bundles")


def better(protocol: str, expected: int) -> Found:
    """On how many games Gorila is better than the DQN."""
    return _counted(protocol, expected, len(beats(table(protocol), "gorila", "dqn")))


def multiple(share: float, expected: int) -> Found:
    """On how many games with human starts Gorila has so many times the DQN's lead over random play."""
    name = "gorila_human_starts"
    return _counted(name, expected, sum(reaches(table(name), "gorila", share, "dqn").values()))


def _counted(protocol: str, expected: int, count: int) -> Found:
    return SO if count == expected else NOT, f"{count} of {len(table(protocol).games)} in the published scores"


def three_quarters_of_human() -> Found:
    """On how many games Gorila has 75 % of the human score."""
    scores = table("gorila_human_starts")
    share = normalise(scores.of("gorila"), scores.of("random"), scores.of("human"))
    told = f"{np.sum(share >= 0.75)} by the formula, and {', '.join(sign_flips(scores))}, where human < random"
    return SO if sum(reaches(scores, "gorila", 0.75).values()) == 25 else NOT, told


def gains() -> Found:
    """Whether the lead over the DQN is greater with human starts."""
    human, noop = (len(beats(table(name), "gorila", "dqn")) for name in ("gorila_human_starts", "gorila_noop"))
    return SO if human > noop else NOT, f"{human} games with human starts, {noop} with no-ops, in the published scores"


def keys_are(config: str, expected: dict[str, Any]) -> Found:
    """Whether a shipped configuration has the values of the paper."""
    loaded = load(ROOT / "configs" / f"{config}.toml", []).model_dump()
    found = {key: loaded[key.partition(".")[0]][key.partition(".")[2]] for key in expected}
    return SET if found == expected else NOT, ", ".join(f"`{key} = {value}`" for key, value in found.items())


def bundles_better() -> Found:
    """Whether eight bundles learn better than one process, at equal frames."""
    one, eight, told = _bundles()
    return SMALL if eight > one else NOT, told


def bundles_worse() -> Found:
    """Whether they learn worse."""
    one, eight, told = _bundles()
    return SMALL if eight < one else NOT, told


def _bundles() -> tuple[float, float, str]:
    cases = _study("gorila_breakout", "parallel bundles")
    returns = {label: _last_quarter(cases[label]) for label in BUNDLES}
    told = ", ".join(f"{label} {value:.2f}" for label, value in returns.items())
    return returns[BUNDLES[0]], returns[BUNDLES[-1]], f"MinAtar Breakout, return of the last quarter: {told}"


def more_actors_see_more() -> Found:
    """Whether the memories of eight bundles hold more different frames than one."""
    cases = _study("gorila_breakout", "parallel bundles")
    share = {k: mean(np.divide(cases[k]["distinct_frames"], cases[k]["held_frames"])) for k in BUNDLES}
    told = ", ".join(f"{label} {100 * value:.1f} %" for label, value in share.items())
    return SMALL if share[BUNDLES[-1]] > share[BUNDLES[0]] else NOT, f"MinAtar Breakout, distinct frames: {told}"


def old_gradients_hurt() -> Found:
    """Whether a delay of a hundred updates spoils learning."""
    cases = _study("gorila_catch", "one learner, older gradients")
    found = {label: _last_quarter(case) for label, case in cases.items()}
    told = ", ".join(f"{label} {value:.2f}" for label, value in found.items())
    return SMALL if found["delay 100"] < found["delay 0"] else NOT, f"catch, return of the last quarter: {told}"


def chunks() -> Found:
    """Whether learners that do nothing but visit a store visit it more often in chunks, and one alone less often."""
    rates = json.loads((STUDIES / "locks.json").read_text())
    found = {learners: (visits["1"], visits["6"]) for learners, visits in rates.items()}
    (one, one_6), (many, many_6) = found["1"], found["4"]
    told = ", ".join(f"{learners} learners {whole:.0f} and {six:.0f}" for learners, (whole, six) in found.items())
    told = f"visits per second of a store of 20 MB in 1 and in 6 chunks: {told.replace('1 learners', '1 learner')}"
    return SMALL if many_6 > many and one_6 < one else NOT, told


def _study(name: str, title: str) -> dict[str, dict]:
    cases = json.loads((STUDIES / f"{name}.json").read_text())[title]
    return {case["label"]: case for case in cases}


def _last_quarter(case: dict, name: str = "returns") -> float:
    return mean(float(np.nanmean(returns[-(len(returns) // 4) :])) for returns in case[name])


def batches_alike(limits: dict[str, int]) -> Found:
    """Whether each algorithm learns as well with minibatches up to its limit as with 32."""
    so, told = True, []
    for algorithm, limit in limits.items():
        cases = _study("large_batches", f"{algorithm}, minibatches")
        returns = {int(label.removeprefix("batch ")): _last_quarter(case) for label, case in cases.items()}
        so = so and all(value > returns[32] - ALIKE for batch, value in returns.items() if batch <= limit)
        told.append(f"{algorithm.partition(',')[0]} {_told(returns)}")
    seeds = _seeds(next(iter(cases.values())))
    return SMALL if so else NOT, f"catch, {seeds}, return of the last quarter by minibatch: {'; '.join(told)}"


def alike(study: str, titles: list[str], task: str, by: str, tolerance: float, most: int = 0) -> Found:
    """Whether each algorithm learns as well with the later cases of a group, up to ``most``, as with its first."""
    so, told = True, []
    for title in titles:
        cases = _study(study, title)
        returns = {int(label.partition(" ")[0]): _last_quarter(case) for label, case in cases.items()}
        first = next(iter(returns.values()))
        so = so and all(value > first - tolerance for count, value in returns.items() if not most or count <= most)
        told.append(f"{title.partition(',')[0]} {_told(returns)}")
    seeds = _seeds(next(iter(cases.values())))
    told = f"{task}, {seeds}, return of the last quarter by {by} (alike: within {tolerance:g}): {'; '.join(told)}"
    return SMALL if so else NOT, told


def gradients_grow_alike() -> Found:
    """Whether A2C with more simulators learns less, and the gradients of halves of its minibatches are more alike."""
    cases = _study("policy_gradients", "A2C")
    measured = {
        name: {int(label.partition(" ")[0]): of(case) for label, case in cases.items()}
        for name, of in (
            ("return of the last quarter", _last_quarter),
            ("diversity", lambda case: mean(case["diversity"])),
        )
    }
    told = "; ".join(f"{name} {_told(found)}" for name, found in measured.items())
    so = all(found[max(found)] < found[min(found)] for found in measured.values())
    return SMALL if so else NOT, f"CartPole, {_seeds(next(iter(cases.values())))}, by simulators (0.5: alike): {told}"


def second_learner(first: int, second: int, learns: bool) -> Found:
    """Whether the learner that does not act comes, at last, to the return of the one that does, or to no good one."""
    case = _study("large_batches", "second learner")[f"{first} acts, {second} beside it"]
    returns = [_last_quarter(case, name) for name in ("first_returns", "second_returns")]
    norms = [mean(seed[-1] for seed in case[name]) for name in ("first_norm", "second_norm")]
    told = f"catch, {_seeds(case)}, greedy return of the last quarter {returns[0]:.2f} and {returns[1]:.2f}"
    told += f", norms at the end {norms[0]:.1f} and {norms[1]:.1f}"
    return SMALL if (returns[1] > returns[0] - ALIKE) == learns else NOT, told


def large_batch_slower() -> Found:
    """Whether a learner of large minibatches needs more steps than one of small ones."""
    cases = _study("large_batches", "second learner")
    small, large = (cases[f"{batch} acts, {batch} beside it"] for batch in (64, 2048))
    means = [np.mean(case["first_returns"], axis=0) for case in (small, large)]
    there = [
        next((frames for frames, value in zip(case["frames"], found, strict=True) if value >= 0.8), None)
        for case, found in zip((small, large), means, strict=True)
    ]
    told = " and ".join(f"{frames:,} frames" if frames else "never" for frames in there)
    told = f"catch, {_seeds(small)}, mean greedy return of 0.8 after: {told}"
    return SMALL if there[0] and (there[1] is None or there[1] > there[0]) else NOT, told


def lag_corrected() -> Found:
    """Whether IMPALA keeps more of its return than GA3C where the policy that acts is old."""
    kept, told = [], []
    for algorithm in ("IMPALA", "GA3C"):
        cases = _study("policy_gradients", f"{algorithm}, policy older by [updates]")
        returns = {label: _last_quarter(case) for label, case in cases.items()}
        kept.append(returns["lag 16"] / returns["lag 0"])
        told.append(f"{algorithm} {_told(returns)}")
    return SMALL if kept[0] > kept[1] else NOT, f"CartPole, return of the last quarter: {'; '.join(told)}"


def _seeds(case: dict) -> str:
    count = len(case["returns"])
    return f"{count} seeds" if count > 1 else "one seed"


def _told(values: dict[Any, float]) -> str:
    return ", ".join(
        f"{name}: {value:.2f}" if abs(value) < 10 else f"{name}: {value:.0f}" for name, value in values.items()
    )


def random_play() -> Found:
    """Whether random play scores as published, on every game that was played."""
    rows = random_play_rows()
    if not rows:
        return OPEN, ""
    greatest = max(abs(row.deviation) for row in rows)
    # With ten games the greatest of so many normal deviations is below 3.3 with a probability of 99 %.
    told = f"{len(rows)} games, greatest deviation {greatest:.1f} standard errors"
    return SMALL if greatest < 3.3 else NOT, told


def generalisation() -> Found:
    """Whether bundles keep more of their no-op score from surrogate human starts than one process does."""
    file = MEASURED / "starts.json"
    if not file.exists():
        return OPEN, ""
    found = json.loads(file.read_text())
    told = "; ".join(
        f"{who}: no-ops {row['noop']['mean']:,.0f}, surrogate starts {row['human']['mean']:,.0f}"
        for who, row in found["players"].items()
    )
    told = f"{found['game']}, {found['training']}: {told}"
    (serial, error), (bundled, other) = (_kept(found["players"][who]) for who in ("serial", "bundled"))
    if abs(bundled - serial) < 2 * np.hypot(error, other):
        return OPEN, f"{told}; no difference beyond two standard errors"
    return SMALL if bundled > serial else NOT, told


def _kept(row: dict[str, dict[str, float]]) -> tuple[float, float]:
    """The share of its no-op score that a player has from other starts, and the standard error of it."""
    human, noop = row["human"], row["noop"]
    errors = [one["deviation"] / one["episodes"] ** 0.5 / max(one["mean"], 1e-9) for one in (human, noop)]
    share = human["mean"] / max(noop["mean"], 1e-9)
    return share, float(share * np.hypot(*errors))


def claims() -> dict[str, list[dict[str, Any]]]:
    """The claims of each paper as they are written down."""
    return tomllib.loads(CLAIMS.read_text(encoding="utf-8"))


def judged(claim: dict[str, Any]) -> Found:
    """The verdict on a claim, and what came out."""
    if "found" in claim:
        name, *arguments = claim["found"]
        verdict, figure = globals()[name](*arguments)
    elif "keys" in claim:
        verdict, figure = keys_are(claim["config"], claim["keys"])
    else:
        verdict, figure = claim["here"], ""
    return verdict, "; ".join(filter(None, (figure, claim.get("figure"), *_measured(claim.get("rows", ())))))


def _measured(names: Iterable[str]) -> Iterator[str]:
    """Rows of benchmarks, where their files are there: ``hpcrl bench NAME --json docs/measured/bench/NAME.json``."""
    rows = {row["name"]: row for file in (MEASURED / "bench").glob("*.json") for row in json.loads(file.read_text())}
    for name in names:
        if name in rows:
            value = float(f"{rows[name]['value']:.4g}")
            yield f"`{name}` here: {value:,g} {rows[name]['unit']}"


def text() -> str:
    """The page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    all_found = {paper: [(claim, *judged(claim)) for claim in of_paper] for paper, of_paper in claims().items()}
    yield "# What the papers say, and what of it is so here"
    yield ""
    yield "Each measurable sentence of the two papers, what came of it here, and the test, page or file that says so."
    yield "`python docs/claims.py` makes this page of [claims.toml](claims.toml) and of the files that it names."
    yield ""
    yield "| | claims | |\n|---|---|---|"
    verdicts = [verdict for found in all_found.values() for _, verdict, _ in found]
    for name, meaning in MEANING.items():
        yield f"| **{name}** | {verdicts.count(name)} | {meaning} |"
    for paper, found in all_found.items():
        yield f"\n## {PAPERS[paper]}\n"
        yield "| the paper says | section | here | what came out | by |\n|---|---|---|---|---|"
        for claim, verdict, figure in found:
            by = ", ".join(f"`{path}`" for path in claim.get("by", ()))
            yield f"| {claim['says']} | {claim['section']} | {verdict} | {figure} | {by} |"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    print(f"wrote {PAGE}")

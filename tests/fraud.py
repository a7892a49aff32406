"""A fraud table as people have it: users with text ids, categories, dates and gaps; transfers with amounts and times.

Fraudulent users send most of their transfers to each other, are younger on average and use one country more often.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def fraud_tables(users: int = 400, transfers: int = 3000, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A node table with columns user, country, age, verified, joined, fraud; an edge table of transfers."""
    rng = np.random.default_rng(seed)
    names = np.array([f"u{rng.integers(10**6):06d}-{i:04d}" for i in range(users)])
    fraud = rng.random(users) < 0.3
    age = np.where(fraud, rng.normal(30, 8, users), rng.normal(45, 12, users)).round(1)
    age[rng.random(users) < 0.1] = np.nan
    country = np.where(fraud & (rng.random(users) < 0.4), "MT", rng.choice(["DE", "FR", "NA", "PL"], users)).astype(
        object
    )
    country[rng.random(users) < 0.05] = None
    label = np.where(fraud, "yes", "no").astype(object)
    label[rng.random(users) < 0.2] = None
    table = pd.DataFrame(
        {
            "user": names,
            "country": country,
            "age": age,
            "verified": rng.random(users) < np.where(fraud, 0.4, 0.8),
            "joined": pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, users), unit="D"),
            "fraud": label,
        }
    )
    sender = rng.integers(0, users, transfers)
    groups = {kind: np.flatnonzero(fraud == kind) for kind in (False, True)}
    alike = rng.random(transfers) < 0.8
    receiver = np.array(
        [rng.choice(groups[bool(fraud[s])]) if a else rng.integers(users) for s, a in zip(sender, alike, strict=True)]
    )
    edges = pd.DataFrame(
        {
            "sender": names[sender],
            "receiver": names[receiver],
            "amount": rng.lognormal(4, 1, transfers).round(2),
            "time": pd.to_datetime("2023-01-01") + pd.to_timedelta(rng.integers(0, 10**7, transfers), unit="s"),
        }
    )
    return table, edges


def write_fraud(folder: Path, **sizes: int) -> tuple[Path, Path]:
    """The two tables as users.csv and transfers.csv."""
    users, transfers = fraud_tables(**sizes)
    paths = folder / "users.csv", folder / "transfers.csv"
    users.to_csv(paths[0], index=False)
    transfers.to_csv(paths[1], index=False)
    return paths

"""Plan and check a private run on a table in a CSV file, and print the command that trains.

python examples/own_data.py
"""

import csv
import random
import tempfile
from pathlib import Path

import sordino

with tempfile.TemporaryDirectory() as folder:
    # Your table: one row a person. Here it is made up.
    draw, table = random.Random(0), Path(folder) / "patients.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "pressure", "smokes", "ill"])
        for _ in range(2000):
            age, pressure, smokes = draw.uniform(20, 90), draw.gauss(130, 20), draw.random() < 0.3
            ill = (age - 55) / 20 + (pressure - 130) / 20 + 2 * smokes + draw.gauss(0, 1) > 0.6
            rows.writerow([f"{age:.1f}", f"{pressure:.0f}", int(smokes), int(ill)])

    for option in sordino.plan(clients=5, records=400, parameters=10, epsilon=2.0, delta=1e-5):
        print(f"a {option.setting.unit} against the {option.setting.viewer}: {option.verdict}")

    keys = {"dataset": str(table), "label_column": "ill", "clients": 5, "epsilon": 2.0, "delta": 1e-5, "rounds": 10}
    for finding in sordino.check(**keys):
        print(f"{finding.severity}: {finding.found}")

    words = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in keys.items())
    print(f"\nTo train: sordino run {words}")

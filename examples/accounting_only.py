"""Ask what a private training run costs, without training anything.

python examples/accounting_only.py
"""

from sordino import accounting

# One step of DP-SGD: every record is drawn with probability 1 %, Gaussian noise of 1.1 times the clip is added.
step = accounting.Sampled(accounting.Gaussian(1.1), rate=0.01)
run = accounting.Repeated(step, 1000)
print(f"1000 steps: epsilon = {accounting.epsilon(run, delta=1e-5):.3f} at delta = 1e-5")

for bound in accounting.explain(run, 1e-5):
    print(f"  {bound.accountant:9} {'says nothing here' if bound.epsilon is None else f'{bound.epsilon:.3f}'}")

# The other way round: how much noise does a total epsilon of 1 need?
noise = accounting.calibrate(
    lambda z: accounting.Repeated(accounting.Sampled(accounting.Gaussian(z), 0.01), 1000), epsilon=1.0, delta=1e-5
)
print(f"epsilon 1 needs a noise multiplier of {noise:.3f}")

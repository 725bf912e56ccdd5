"""The workloads in pfl's simulated backend, over processes as its documentation has it (torchrun).

pfl clips no single record's gradient, so W1 is glue of ours: Opacus's module and optimiser inside pfl's model.
"""

import argparse
import logging
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from common import WORKLOADS, Clock, Enough, Memory, answer, by_client, cnn
from peer_clients import CLIP, NOISE, RATE


class Net(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = True) -> dict[str, object]:
        return {}  # asked for by pfl, never called here: nothing is evaluated


def main(args: argparse.Namespace) -> None:
    if args.processes > 1 and "WORLD_SIZE" not in os.environ:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={args.processes}"]
        os.execve(sys.executable, [sys.executable, *torchrun, *sys.argv], os.environ | {"OMP_NUM_THREADS": "1"})
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    np.random.seed(0)
    first = os.environ.get("RANK", "0") == "0"
    root = os.getppid() if args.processes > 1 else None
    memory = Memory(root) if first else None
    clock = Clock(args.warmup, root)
    train(args, clock)
    if memory is not None:
        load = WORKLOADS[args.workload]
        found = clock.summary(load.cohort * load.records)
        answer(what="pfl", workload=args.workload, **found, processes=args.processes, peak_mb=memory.peak_mb())
    if args.processes > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def train(args: argparse.Namespace, clock: Clock) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    class Watch(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            self.enough = Enough(args)
            clock.start()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            clock.tick()
            stop = torch.tensor(float(self.enough(clock)))
            if args.processes > 1:
                torch.distributed.broadcast(stop, 0)
            return bool(stop), Metrics()

    load = WORKLOADS[args.workload]
    net, optimizer, private = Net(cnn()), torch.optim.SGD, []
    if args.workload == "W1":
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        net = Net(GradSampleModule(net.net))

        def optimizer(params, lr):
            inner = torch.optim.SGD(params, lr=lr)
            return DPOptimizer(inner, noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=load.batch)
    else:
        private = [CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE))]
    x, y = by_client(load)
    clients = FederatedDataset(
        lambda i: PyTorchTensorDataset((x[i], y[i]), user_id=str(i)), lambda: np.random.randint(load.clients)
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=100_000,
            evaluation_frequency=1_000_000,
            train_cohort_size=load.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients, postprocessors=private),
        model=PyTorchModel(
            model=net,
            local_optimizer_create=optimizer,
            central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=RATE, local_num_epochs=1, local_batch_size=load.batch
        ),
        model_eval_params=None,
        callbacks=[Watch()],
    )

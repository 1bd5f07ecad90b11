"""The examples of docs/client.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.test_real_api import api as served
from tests.client.agent import ROOT, Agent, run
from tests.packages import need

api = served
PAGE = (ROOT / "docs" / "client.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BEFORE = {
    "elastic(": """
import torch
model, loss_of = torch.nn.Linear(4, 1), torch.nn.functional.mse_loss
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
""",
    "from transformers": """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}
model, data = Model(), [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(20)]
""",
    "import lightning": """
import lightning, torch
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
module = Module()
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4)
""",
}
"""What stands before an example, by a word in it."""
NEEDED = {"from transformers": ("transformers", "accelerate"), "import lightning": ("lightning",)}


def test_the_page_is_short() -> None:
    assert len(EXAMPLES) == 7
    assert len(PAGE.split()) <= 900


@pytest.mark.parametrize("example", [each for each in EXAMPLES if "Client()" not in each])
def test_training(example: str, heard: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for word, packages in {
        "from transformers": ("transformers", "accelerate"),
        "import lightning": ("lightning",),
    }.items():
        if word in example:
            need(*packages)
    monkeypatch.chdir(tmp_path)
    before = "".join(code for word, code in BEFORE.items() if word in example)
    run(before + example, heard.variables)
    assert heard.steps


@pytest.mark.parametrize("example", [each for each in EXAMPLES if "Client()" in each])
def test_the_service(example: str, api: str, tmp_path: Path) -> None:
    run(example, {"OPTIMUS_URL": api, "XDG_CONFIG_HOME": str(tmp_path)})

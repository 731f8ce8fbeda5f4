"""The rules that a contract is checked against, one function each, by what they are about: what contradicts itself,
with the numbers and what to change. `check` runs them in this order.
"""

from settled.contract.rules import marks, times, order, room, failure, rates, keeping, hints  # noqa: I001  # the order of RULES
from settled.contract.rules.rule import RULES, Rule, Severity

__all__ = ["RULES", "Rule", "Severity", "failure", "hints", "keeping", "marks", "order", "rates", "room", "times"]

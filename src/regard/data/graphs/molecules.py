"""Molecules: SMILES as graphs with features of atoms and bonds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput, Missing

SMILES_NAMES = ("smiles", "canonical_smiles", "smile", "structure")
ELEMENTS = ("C", "N", "O", "S", "F", "Cl", "Br", "I", "P", "B", "Si", "Se", "Na", "H")
HYBRIDS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
DEGREES, HYDROGENS = range(6), range(5)
ATOM_FEATURES = len(ELEMENTS) + len(HYBRIDS) + len(DEGREES) + len(HYDROGENS) + 4 + 5
BOND_FEATURES = len(BONDS) + 3


@dataclass(frozen=True, eq=False)
class Molecule:
    """A molecule as a graph, in which each bond is two edges, one in each direction.

    `atoms [atoms, ATOM_FEATURES]`, `edges [2, 2·bonds]`, `bonds [2·bonds, BOND_FEATURES]`.
    """

    atoms: Tensor
    edges: Tensor
    bonds: Tensor


def read_molecule(smiles: str) -> Molecule:
    """The graph of a SMILES; `BadInput` if it is invalid, `Missing` without rdkit.

    Features of an atom: element, hybridisation, number of neighbours and of hydrogens (each one-hot, with a last column
    for all others), its charge, and whether it is a radical, aromatic, in a ring, a stereocentre. Features of a bond:
    single, double, triple, aromatic or other (one-hot), and whether it is conjugated, in a ring.
    """
    chem, base = import_rdkit()
    with base.BlockLogs():
        molecule = chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise BadInput(f"{smiles!r:.80} is not a valid SMILES. Correct it, or leave it out.")
    atoms = torch.tensor([atom_vector(atom, chem) for atom in molecule.GetAtoms()])
    bonds = list(molecule.GetBonds())
    pairs = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    both = [edge for source, target in pairs for edge in ((source, target), (target, source))]
    types = [one_hot(str(bond.GetBondType()), BONDS) for bond in bonds]
    flags = [[float(bond.GetIsConjugated()), float(bond.IsInRing())] for bond in bonds]
    vectors = [[*bond, *flag] for bond, flag in zip(types, flags, strict=True) for _ in range(2)]
    edges = torch.tensor(both, dtype=torch.int64).view(-1, 2).T.contiguous()
    return Molecule(atoms, edges, torch.tensor(vectors).view(-1, BOND_FEATURES))


def murcko_scaffold(smiles: str) -> str:
    """The ring systems of a molecule and their linkers (Bemis and Murcko 1996), as a SMILES; "" without a ring."""
    _, base = import_rdkit()
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    with base.BlockLogs():
        return MurckoScaffoldSmiles(smiles=smiles, includeChirality=False)


def import_rdkit() -> tuple[ModuleType, ModuleType]:
    """rdkit's modules `Chem` and `rdBase`; `Missing` if it is not installed."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        raise Missing('Reading SMILES needs rdkit: pip install "regard[molecules]".') from None
    return Chem, rdBase


def atom_vector(atom: Any, chem: ModuleType) -> list[float]:
    """The features of an atom (see `read_molecule`)."""
    stereo = atom.GetChiralTag() != chem.ChiralType.CHI_UNSPECIFIED
    flags = (atom.GetNumRadicalElectrons() > 0, atom.GetIsAromatic(), atom.IsInRing(), stereo)
    return [
        *one_hot(atom.GetSymbol(), ELEMENTS),
        *one_hot(str(atom.GetHybridization()), HYBRIDS),
        *one_hot(atom.GetDegree(), DEGREES),
        *one_hot(atom.GetTotalNumHs(), HYDROGENS),
        float(atom.GetFormalCharge()),
        *map(float, flags),
    ]


def one_hot(value: str | int, choices: Sequence[str] | Sequence[int]) -> list[float]:
    """The one-hot vector of a value among the choices; the last element is 1 for any other value.

    >>> one_hot("N", ("C", "N")), one_hot("Xe", ("C", "N"))
    ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    """
    return [float(value == choice) for choice in choices] + [float(value not in choices)]

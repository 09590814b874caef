"""Molecules: SMILES as graphs, atoms and bonds as vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput, Missing

SMILES_NAMES = ("smiles", "canonical_smiles", "smile", "structure")
ELEMENTS = ("C", "N", "O", "S", "F", "Cl", "Br", "I", "P", "B", "Si", "Se", "Na", "H")
HYBRIDS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
DEGREES, HYDROGENS = range(6), range(5)
ATOM_FEATURES = len(ELEMENTS) + len(HYBRIDS) + len(DEGREES) + len(HYDROGENS) + 4 + 5
BOND_FEATURES = len(BONDS) + 3


@dataclass(frozen=True, eq=False)
class Molecule:
    """`atoms [atoms, ATOM_FEATURES]`; each bond both ways: `edges [2, 2·bonds]`, `bonds [2·bonds, BOND_FEATURES]`."""

    atoms: Tensor
    edges: Tensor
    bonds: Tensor


def read_molecule(smiles: str) -> Molecule:
    """The graph of a SMILES; `BadInput` if it is none, `Missing` without rdkit.

    An atom is: which element, hybridisation, number of neighbours and of hydrogens (each one-hot, the last place for
    all others), then its charge, whether it is a radical, aromatic, in a ring, a stereocentre. A bond is: single,
    double, triple, aromatic or other, then whether it is conjugated, in a ring.
    """
    chem, base = import_rdkit()
    with base.BlockLogs():
        molecule = chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise BadInput(f"{smiles!r:.80} is no SMILES of a possible molecule. Mend it, or leave it out.")
    atoms = torch.tensor([atom_vector(atom, chem) for atom in molecule.GetAtoms()])
    bonds = list(molecule.GetBonds())
    pairs = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    both = [edge for source, target in pairs for edge in ((source, target), (target, source))]
    vectors = [vector for bond in bonds for vector in [bond_vector(bond)] * 2]
    edges = torch.tensor(both, dtype=torch.int64).view(-1, 2).T.contiguous()
    return Molecule(atoms, edges, torch.tensor(vectors).view(-1, BOND_FEATURES))


def murcko_scaffold(smiles: str) -> str:
    """The rings of a molecule and what joins them (Bemis and Murcko 1996), as a SMILES; "" where there is no ring."""
    _, base = import_rdkit()
    from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

    with base.BlockLogs():
        return MurckoScaffoldSmiles(smiles=smiles, includeChirality=False)


def import_rdkit() -> tuple[Any, Any]:
    """The modules that read SMILES."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        raise Missing('Reading SMILES needs rdkit: pip install "regard[molecules]".') from None
    return Chem, rdBase


def atom_vector(atom: Any, chem: Any) -> list[float]:
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


def bond_vector(bond: Any) -> list[float]:
    kind = one_hot(str(bond.GetBondType()), BONDS)
    return [*kind, float(bond.GetIsConjugated()), float(bond.IsInRing())]


def one_hot(value: Any, known: Any) -> list[float]:
    """1 at the value's place, or at the last one for whatever is not known.

    >>> one_hot("N", ("C", "N")), one_hot("Xe", ("C", "N"))
    ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    """
    return [float(value == one) for one in known] + [float(value not in known)]

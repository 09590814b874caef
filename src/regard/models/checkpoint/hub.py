"""Upload of a model's folder to the Hugging Face Hub, when it is asked for."""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import BadInput, Missing, RegardError

NAME = re.compile(r"[\w.-]+/[\w.-]+")


def push_folder(folder: str | Path, repository: str, private: bool = True) -> str:
    """Upload a folder as the repository `owner/name`, which is made if it does not exist; returns its address."""
    if not NAME.fullmatch(repository):
        raise BadInput(f"The repository is {repository!r}. Give owner/name, such as my-name/my-model.")
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise Missing("Uploading needs huggingface_hub: pip install huggingface_hub.") from None
    try:
        api = HfApi()
        address = api.create_repo(repository, private=private, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=str(folder))
    except Exception as error:  # of its HTTP library and of its own, by version
        reason = " ".join(str(error).split())[:200]
        raise RegardError(
            f"{repository} was not uploaded: {reason or type(error).__name__} Check the network and the login "
            "(hf auth login), or save the model into a folder and upload it from another machine."
        ) from error
    return str(address)

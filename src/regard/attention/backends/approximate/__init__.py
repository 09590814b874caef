"""The approximate methods: Linformer, Nyström and Performer, linear in the tokens on every device."""

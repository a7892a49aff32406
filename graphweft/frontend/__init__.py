"""Front ends: message passing written as plain tensor code, run as it stands or raised into the IR."""

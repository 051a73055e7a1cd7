"""Numbers that papers print for recall from documents."""

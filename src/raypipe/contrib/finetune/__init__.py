"""Labels by db3's rules, and LoRA adapters that are trained on them."""

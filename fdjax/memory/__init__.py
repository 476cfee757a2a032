"""Who owns which bytes: the KV array, its pages, and the plan made before both."""

"""The model: neural memories as swappable components, in pure torch.

Letters used in every shape of this package: ``b`` batch, ``t`` time, ``h`` head, ``m`` model width,
``d`` key width, ``e`` value width, ``f`` feature width (after the feature map), ``c`` window
length, ``n`` token inside a chunk, ``i`` source token (halo first, then the chunk).
"""

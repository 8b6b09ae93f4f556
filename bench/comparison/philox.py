"""random_uniform of Heddle's mods (Philox4x32-10, src/shared/philox.h) on PyTorch's tensors, to judge dropout."""

LOW = 0xFFFFFFFF
DOMAIN = 0x48656464


def rounds(x, key):
    """Ten rounds over four words, int64 tensors that hold 32 bits each."""
    for _ in range(10):
        # A product past 63 bits wraps; its bits are right.
        first, third = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = (
            ((third >> 32) & LOW) ^ x[1] ^ key[0],
            third & LOW,
            ((first >> 32) & LOW) ^ x[3] ^ key[1],
            first & LOW,
        )
        key = ((key[0] + 0x9E3779B9) & LOW, (key[1] + 0xBB67AE85) & LOW)
    return x


def random_uniform(torch, seed, b, h, q, k):
    """b, h, q of any shapes that broadcast with k's; k: the keys 0, 1, 2, ... in its last axis."""
    keys = k.flatten()
    column = ((keys >> 6) << 2) | ((keys >> 1) & 3)
    columns = torch.arange(int(column.max()) + 1, device=k.device)  # one call serves sixteen keys
    words = torch.stack(rounds(torch.broadcast_tensors(b, h, q, columns), (seed & LOW, DOMAIN)), dim=-1)
    which, half = (keys >> 3) & 3, 16 * (keys & 1)
    own, following = (words[..., column, w] >> half for w in (which, (which + 1) & 3))
    both = own ^ following
    first = (own & 0xFF00) | (both & 0xFF)
    second = ((own & 0xFF) << 8) | ((both >> 8) & 0xFF)
    return (torch.where((keys & 32) == 0, first, second) & 0x7FFF).float() * 2.0**-15

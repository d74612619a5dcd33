from tessera.torch._attention import attention, new_dropout_state
from tessera.torch._operators import mask_key

"""The CPU libraries that peers_cpu.py compares with. Each offers several ways to compute a cell; the fastest one counts.

A peer works on the tensors of the problem without copies. Graphs, sessions and masks are built before the clock starts.
"""

import functools
from dataclasses import dataclass
from typing import Callable

import numpy
import torch
from torch.nn.functional import scaled_dot_product_attention

from cpu_cells import WINDOW
from cpu_problem import laid_out


@dataclass
class Variant:
    """One way of a peer to compute a cell. `results` gives tensors (B, H, N, D) to compare; `refresh` is not timed."""

    name: str
    layout: str  # of the tensors; Tessera computes on the same ones
    threads: int
    build: Callable  # returns (call, results) or (call, results, refresh)
    call: Callable = None
    results: Callable = None
    refresh: Callable = staticmethod(lambda: None)

    def prepare(self):
        self.call, self.results, *more = self.build()
        if more:
            self.refresh = more[0]


def folded(problem):
    """Query heads of a key/value head as more queries of that head: exact for full attention, and a view of BHND."""
    cell = problem.cell
    q, k, v = problem.tensors("bhnd")[:3]
    group = cell.heads // cell.kv_heads
    return q.view(cell.batch, cell.kv_heads, group * cell.queries, cell.dim), k, v


def can_fold(cell):
    return cell.heads != cell.kv_heads and not cell.causal and not cell.feature


def unfolded(out, problem):
    cell = problem.cell
    return out.reshape(cell.batch, cell.heads, cell.queries, cell.dim)


def masks(problem):
    """The complete mask in each form that can express it: (form, tensor)."""
    forms = (("bool", problem.boolean(causal=True)), ("float", problem.additive(causal=True)))
    return [(kind, mask) for kind, mask in forms if mask is not None]


class Peer:
    """What the worker needs of a library. `packages` are those whose versions count."""

    packages = ()

    def setup(self):
        """Imports the library; fails where it is not installed."""

    def use(self, threads):
        """Called before variants with that number of threads run."""

    def unsupported(self, cell):
        """Why the library cannot compute a cell at all, or None."""

    def variants(self, problem):
        for threads in problem.thread_choices():
            for name, layout, build in self.ways(problem, threads):
                yield Variant(name, layout, threads, build)

    def ways(self, problem, threads):
        raise NotImplementedError


class PyTorch(Peer):
    packages = ("torch",)

    def use(self, threads):
        torch.set_num_threads(threads)

    def ways(self, problem, threads):
        cell = problem.cell
        if can_fold(cell):
            yield "folded", "bhnd", functools.partial(self.fold, problem)
        for layout in ("bhnd", "bnhd"):
            if cell.direction == "backward":
                yield layout, layout, functools.partial(self.backward, problem, layout)
                continue
            if not problem.masked():
                yield layout, layout, functools.partial(self.plain, problem, layout)
                continue
            for kind, mask in masks(problem):
                yield f"{layout} {kind}", layout, functools.partial(self.masked, problem, layout, mask)

    def forward(self, q, k, v, **how):
        result = [None]

        def call():
            with torch.inference_mode():
                result[0] = scaled_dot_product_attention(q, k, v, **how)

        return call, lambda: [result[0]]

    def plain(self, problem, layout):
        how = {"is_causal": problem.cell.causal, "enable_gqa": problem.cell.heads != problem.cell.kv_heads}
        return self.forward(*problem.tensors(layout), **how)

    def fold(self, problem):
        call, results = self.forward(*folded(problem))
        return call, lambda: [unfolded(results()[0], problem)]

    def masked(self, problem, layout, mask):
        return self.forward(*problem.tensors(layout), attn_mask=mask)

    def backward(self, problem, layout):
        q, k, v, grad_out = problem.tensors(layout)
        leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        out = scaled_dot_product_attention(*leaves, is_causal=problem.cell.causal)
        result = [None]

        def call():
            result[0] = torch.autograd.grad(out, leaves, grad_out, retain_graph=True)

        return call, lambda: list(result[0])


class Zentorch(Peer):
    packages = ("zentorch", "torch")

    def setup(self):
        import zentorch  # noqa: F401  registers its operators

        self.attention = torch.ops.zentorch.zentorch_sdpa.out

    def use(self, threads):
        torch.set_num_threads(threads)

    def unsupported(self, cell):
        return "no backward of its own" if cell.direction == "backward" else None

    def ways(self, problem, threads):
        if can_fold(problem.cell):
            yield "folded", "bhnd", functools.partial(self.fold, problem)
        for layout in ("bhnd", "bnhd"):
            yield layout, layout, functools.partial(self.plain, problem, layout)

    def forward(self, q, k, v, causal=False, mask=None):
        out = torch.empty_like(q)

        def call():
            with torch.inference_mode():
                self.attention(q, k, v, 0.0, causal, attn_mask=mask, out=out)

        return call, lambda: [out]

    def plain(self, problem, layout):
        mask = problem.additive(causal=False) if problem.masked() else None
        return self.forward(*problem.tensors(layout), problem.cell.causal, mask)

    def fold(self, problem):
        call, results = self.forward(*folded(problem))
        return call, lambda: [unfolded(results()[0], problem)]


class OpenVINO(Peer):
    packages = ("openvino",)

    def setup(self):
        import openvino
        import openvino.opset13
        import openvino.opset6

        self.ov, self.op, self.op6 = openvino, openvino.opset13, openvino.opset6
        self.core = openvino.Core()
        types = openvino.Type
        self.types = {torch.float32: types.f32, torch.bfloat16: types.bf16, torch.float16: types.f16,
                      torch.bool: types.boolean, torch.int32: types.i32}

    def unsupported(self, cell):
        return "no backward" if cell.direction == "backward" else None

    def ways(self, problem, threads):
        cell = problem.cell
        grouped = cell.heads != cell.kv_heads
        if can_fold(cell):
            yield "folded", "bhnd", functools.partial(self.graph, problem, threads, "bhnd", fold=True)
        if cell.group == "decode":
            yield "KV cache", "bhnd", functools.partial(self.cached, problem, threads)
            return
        for kind, mask in masks(problem) if problem.masked() else [("", None)]:
            for layout in ("bhnd", "bnhd"):
                build = functools.partial(self.graph, problem, threads, layout, mask=mask, repeat=grouped)
                yield f"{layout} {kind}".strip(), layout, build
        if not problem.masked() and cell.batch == 1:
            yield "state", "bhnd", functools.partial(self.stateful, problem, threads)

    def tensor(self, tensor):
        """OpenVINO's view of a contiguous torch tensor."""
        kind = self.types[tensor.dtype]
        bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        return self.ov.Tensor(bits.numpy(), self.ov.Shape(list(tensor.shape)), kind)

    def compiled(self, model, problem, threads):
        precision = "bf16" if problem.dtype == torch.bfloat16 else "f32"
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        settings |= {"PERFORMANCE_HINT": "LATENCY", "KV_CACHE_PRECISION": precision}
        return self.core.compile_model(model, "CPU", settings).create_infer_request()

    def repeated(self, node, cell):
        """Key/value heads for each query head, as exported models write it; the KV cache fuses it."""
        ones = numpy.ones((1, 1, cell.heads // cell.kv_heads, 1, 1), numpy.float32)
        ones = self.op.constant(ones, dtype=node.get_element_type())
        product = self.op.multiply(self.op.unsqueeze(node, self.op.constant(2)), ones)
        shape = self.op.constant(numpy.array([0, cell.heads, -1, cell.dim], numpy.int64))
        return self.op.reshape(product, shape, special_zero=True)

    def graph(self, problem, threads, layout, mask=None, fold=False, repeat=False):
        """A model of static shapes, bound to the tensors."""
        op, cell = self.op, problem.cell
        tensors = list(folded(problem) if fold else problem.tensors(layout))
        stored = [tensor.transpose(1, 2) if layout == "bnhd" else tensor for tensor in tensors]
        parameters = [op.parameter(list(tensor.shape), self.types[tensor.dtype]) for tensor in stored]
        inputs = parameters
        if layout == "bnhd":
            inputs = [op.transpose(node, op.constant(numpy.array([0, 2, 1, 3], numpy.int32))) for node in inputs]
        if repeat:
            inputs = [inputs[0]] + [self.repeated(node, cell) for node in inputs[1:]]
        arguments = list(inputs)
        if mask is not None:
            stored.append(mask)
            parameters.append(op.parameter(list(stored[-1].shape), self.types[stored[-1].dtype]))
            arguments.append(parameters[-1])
        node = op.scaled_dot_product_attention(*arguments, causal=cell.causal and mask is None)
        if layout == "bnhd":
            node = op.transpose(node, op.constant(numpy.array([0, 2, 1, 3], numpy.int32)))
        request = self.compiled(self.ov.Model([op.result(node)], parameters), problem, threads)
        out = torch.empty_like(stored[0])
        for index, tensor in enumerate(stored):
            request.set_input_tensor(index, self.tensor(tensor))
        request.set_output_tensor(0, self.tensor(out))
        kept = stored

        def results():
            assert kept
            value = out.transpose(1, 2) if layout == "bnhd" else out
            return [unfolded(value, problem) if fold else value]

        return request.infer, results

    def cache_model(self, problem, threads):
        """A model with a KV cache as its state: what OpenVINO's attention node is made for."""
        from openvino.op.util import Variable, VariableInfo

        op, cell, kind = self.op, problem.cell, self.types[problem.dtype]
        shapes = [[-1, heads, -1, cell.dim] for heads in (cell.heads, cell.kv_heads, cell.kv_heads)]
        parameters = [op.parameter(shape, kind) for shape in shapes] + [op.parameter([-1], self.ov.Type.i32)]
        sinks, caches = [], []
        for name, node, shape in zip(("key", "value"), parameters[1:3], shapes[1:]):
            info = VariableInfo()
            info.data_shape, info.data_type, info.variable_id = self.ov.PartialShape(shape), kind, name
            variable = Variable(info)
            empty = op.constant(numpy.array([1, cell.kv_heads, 0, cell.dim], numpy.int64))
            zero = op.convert(op.constant(numpy.float32(0)), kind.get_type_name())
            past = self.op6.read_value(op.broadcast(zero, empty), variable)
            cache = op.concat([op.gather(past, parameters[3], op.constant(0)), node], 2)
            sinks.append(self.op6.assign(cache, variable))
            caches.append(cache)
        if cell.heads != cell.kv_heads:
            caches = [self.repeated(cache, cell) for cache in caches]
        node = op.scaled_dot_product_attention(parameters[0], *caches, causal=cell.causal)
        request = self.compiled(self.ov.Model([op.result(node)], sinks, parameters, "attention"), problem, threads)
        beam = torch.zeros(cell.batch, dtype=torch.int32)
        request.set_input_tensor(3, self.tensor(beam))
        return request, beam

    def stateful(self, problem, threads):
        """All keys enter an empty cache in each call."""
        request, beam = self.cache_model(problem, threads)
        tensors = problem.tensors("bhnd")[:3]
        for index, tensor in enumerate(tensors):
            request.set_input_tensor(index, self.tensor(tensor))

        def call():
            request.reset_state()
            request.infer()

        return call, lambda: [self.output(request, problem, (beam, tensors))]

    def cached(self, problem, threads):
        """A step of decoding: a token enters a cache that has all others. The cache grows by a token a call; it is
        filled again before it has grown by 3 %."""
        request, beam = self.cache_model(problem, threads)
        q, k, v = problem.tensors("bhnd")
        keys = problem.cell.keys
        past = [tensor[:, :, : keys - 1].contiguous() for tensor in (k, v)]
        last = [tensor[:, :, keys - 1 :].contiguous() for tensor in (k, v)]
        for index, tensor in enumerate((q, *last)):
            request.set_input_tensor(index, self.tensor(tensor))
        grown, kept = [keys], (beam, q, last)

        def fill():
            if grown[0] > 0.03 * keys:
                for state in request.query_state():
                    state.state = self.tensor(past[state.name.startswith("value")])
                request.infer()  # copies the cache
                grown[0] = 1

        def call():
            assert kept
            request.infer()
            grown[0] += 1

        fill()
        first = self.output(request, problem, (beam, past, last)).clone()
        return call, lambda: [first], fill

    def output(self, request, problem, kept):
        assert kept  # the request holds addresses, not tensors
        bits = numpy.array(request.get_output_tensor(0).data)
        if problem.dtype == torch.bfloat16:
            return torch.from_numpy(bits.view(numpy.int16)).view(torch.bfloat16)
        return torch.from_numpy(bits)


class OnnxRuntime(Peer):
    packages = ("onnxruntime",)

    def setup(self):
        import onnx
        import onnxruntime

        self.onnx, self.runtime = onnx, onnxruntime
        kinds = onnx.TensorProto
        self.types = {torch.float32: kinds.FLOAT, torch.float16: kinds.FLOAT16, torch.bool: kinds.BOOL,
                      torch.int32: kinds.INT32, torch.int64: kinds.INT64}

    def unsupported(self, cell):
        if cell.direction == "backward":
            return "no backward"
        return "no bf16 attention on CPUs" if cell.dtype == "bf16" else None

    def ways(self, problem, threads):
        """MultiHeadAttention (mha), GroupQueryAttention (gqa), and Attention of opset 24 (a24), in 3D: BNHD, or 4D: BHND."""
        cell = problem.cell
        same = cell.heads == cell.kv_heads
        if can_fold(cell):
            yield "a24 folded", "bhnd", functools.partial(self.attention, problem, threads, 4, fold=True)
            yield "mha folded", "bhnd", functools.partial(self.multi_head, problem, threads, 4, fold=True)
        if cell.group == "decode":
            yield "gqa", "bhnd", functools.partial(self.cached, problem, threads)
        for rank, layout in ((3, "bnhd"), (4, "bhnd")):
            yield f"a24 {layout}", layout, functools.partial(self.attention, problem, threads, rank)
            if same:
                yield f"mha {layout}", layout, functools.partial(self.multi_head, problem, threads, rank)
        if cell.causal and cell.batch == 1 and cell.queries == cell.keys:
            yield "gqa", "bnhd", functools.partial(self.grouped, problem, threads)
        if cell.feature == "padding":
            yield "a24 lengths", "bnhd", functools.partial(self.attention, problem, threads, 3, lengths=True)
            yield "mha lengths", "bnhd", functools.partial(self.multi_head, problem, threads, 3, lengths=True)

    def session(self, operator, domain, inputs, outputs, threads, slots, **attributes):
        """A session of one node, bound to tensors. inputs, outputs: {name: tensor}; slots: names by position, "" skips."""
        helper = self.onnx.helper
        if domain:
            attributes["domain"] = domain
        node = helper.make_node(operator, slots, list(outputs), **attributes)
        values = [[helper.make_tensor_value_info(name, self.types[tensor.dtype], list(tensor.shape))
                   for name, tensor in named.items()] for named in (inputs, outputs)]
        imports = [helper.make_opsetid("", 24), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(helper.make_graph([node], "attention", *values), opset_imports=imports, ir_version=11)
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = self.runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for bind, named in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, tensor in named.items():
                bind(name, "cpu", 0, self.types[tensor.dtype], list(tensor.shape), tensor.data_ptr())
        kept = (inputs, outputs)

        def call():
            assert kept
            session.run_with_iobinding(binding)

        return call

    def flat(self, tensor):
        """(B, H, N, D) as (B, N, H * D), a view where it lies as (B, N, H, D)."""
        return tensor.transpose(1, 2).flatten(2)

    def operands(self, problem, rank, fold):
        """q, k, v for a rank, the output, and how to read it as (B, H, N, D)."""
        cell = problem.cell
        q, k, v = folded(problem) if fold else problem.tensors("bnhd" if rank == 3 else "bhnd")[:3]
        if rank == 4:
            out = torch.empty_like(q)
            return q, k, v, out, lambda: [unfolded(out, problem) if fold else out]
        out = torch.empty_like(self.flat(q))
        read = lambda: [out.view(cell.batch, cell.queries, cell.heads, cell.dim).transpose(1, 2)]  # noqa: E731
        return self.flat(q), self.flat(k), self.flat(v), out, read

    def attention(self, problem, threads, rank, fold=False, lengths=False):
        cell = problem.cell
        q, k, v, out, read = self.operands(problem, rank, fold)
        inputs, slots = {"q": q, "k": k, "v": v}, ["q", "k", "v"]
        if lengths:
            inputs["n"], slots = torch.tensor(cell.padded_lengths()), ["q", "k", "v", "", "", "", "n"]
        elif problem.masked():
            mask = problem.boolean(causal=False)
            mask = problem.additive(causal=False) if mask is None else mask
            inputs["m"] = mask.expand(-1, -1, cell.queries, -1).contiguous()
            slots.append("m")
        attributes = {} if rank == 4 else {"q_num_heads": cell.heads, "kv_num_heads": cell.kv_heads}
        causal = int(cell.causal)
        return self.session("Attention", "", inputs, {"y": out}, threads, slots, is_causal=causal, **attributes), read

    def multi_head(self, problem, threads, rank, fold=False, lengths=False):
        """Its queries are always (B, N, H * D); keys and values may be (B, H, N, D)."""
        cell = problem.cell
        if rank == 4:
            q, k, v = folded(problem) if fold else problem.tensors("bhnd")[:3]
            q = self.flat(laid_out(q, "bnhd"))
            out = torch.empty_like(q)
            heads, rows = (cell.kv_heads, q.shape[1]) if fold else (cell.heads, cell.queries)

            def read():
                value = out.view(cell.batch, rows, heads, cell.dim).transpose(1, 2)
                return [unfolded(value, problem) if fold else value]
        else:
            q, k, v, out, read = self.operands(problem, rank, fold)
            heads = cell.heads
        inputs, slots = {"q": q, "k": k, "v": v}, ["q", "k", "v"]
        if lengths:
            inputs["n"], slots = problem.visible[:, 0, 0].to(torch.int32), ["q", "k", "v", "", "n"]
        elif problem.masked():
            inputs["m"] = problem.additive(causal=False).expand(-1, -1, cell.queries, -1).contiguous()
            slots += ["", "", "m"]
        attributes = {"num_heads": heads, "unidirectional": int(cell.causal)}
        return self.session("MultiHeadAttention", "com.microsoft", inputs, {"y": out}, threads, slots, **attributes), read

    def grouped(self, problem, threads):
        """Causal attention, with a window where the cell has one."""
        cell = problem.cell
        q, k, v, out, read = self.operands(problem, 3, False)
        inputs = {"q": q, "k": k, "v": v, "n": torch.tensor([cell.keys - 1], dtype=torch.int32)}
        inputs["total"] = torch.tensor([cell.keys], dtype=torch.int32)
        slots = ["q", "k", "v", "", "", "n", "total"]
        attributes = {"num_heads": cell.heads, "kv_num_heads": cell.kv_heads}
        if cell.feature == "window":
            attributes["local_window_size"] = WINDOW
        elif problem.masked():
            inputs["m"], slots = problem.additive(causal=False), [*slots, "", "", "", "m"]
        call = self.session("GroupQueryAttention", "com.microsoft", inputs, {"y": out}, threads, slots, **attributes)
        return call, read

    def cached(self, problem, threads):
        """A step of decoding: the last token is written into a cache that is past and present at once."""
        cell = problem.cell
        q, k, v = problem.tensors("bhnd")
        inputs = {"q": q.reshape(1, 1, -1)}
        inputs |= {name: tensor[:, :, cell.keys - 1].reshape(1, 1, -1) for name, tensor in (("k", k), ("v", v))}
        inputs |= {"past_k": k, "past_v": v, "n": torch.tensor([cell.keys - 1], dtype=torch.int32)}
        inputs["total"] = torch.tensor([cell.keys], dtype=torch.int32)
        out = torch.empty_like(inputs["q"])
        attributes = {"num_heads": cell.heads, "kv_num_heads": cell.kv_heads}
        outputs = {"y": out, "present_k": k, "present_v": v}
        call = self.session("GroupQueryAttention", "com.microsoft", inputs, outputs, threads, list(inputs), **attributes)
        return call, lambda: [unfolded(out, problem)]


LIBRARIES = {"pytorch": PyTorch, "zentorch": Zentorch, "openvino": OpenVINO, "onnxruntime": OnnxRuntime}

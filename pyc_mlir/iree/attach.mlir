// The function by which a loaded program is told of threads, at the end of phase `stream`, where
// memory is planned already. The code of its dispatch is replaced: see `fork_join.py`.
stream.executable private @pyc_threads_attach_1_code {
  stream.executable.export public @pyc_threads_attach_1_code workgroups() -> (index, index, index) {
    %one = arith.constant 1 : index
    stream.return %one, %one, %one : index, index, index
  }
  builtin.module {
    func.func @pyc_threads_attach_1_code(%in: !stream.binding {stream.alignment = 64 : index}, %out: !stream.binding {stream.alignment = 64 : index}) {
      %zero = arith.constant 0 : index
      %from = stream.binding.subspan %in[%zero] : !stream.binding -> !iree_tensor_ext.dispatch.tensor<readonly:tensor<16xi64>>
      %to = stream.binding.subspan %out[%zero] : !stream.binding -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<16xi64>>
      %words = iree_tensor_ext.dispatch.tensor.load %from, offsets = [0], sizes = [16], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<16xi64>> -> tensor<16xi64>
      iree_tensor_ext.dispatch.tensor.store %words, %to, offsets = [0], sizes = [16], strides = [1] : tensor<16xi64> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<16xi64>>
      return
    }
  }
}
util.func public @pyc_threads_attach_1(%given: !hal.buffer_view) -> !hal.buffer_view attributes {iree.abi.stub, iree.reflection = {iree.abi.declaration = "sync func @pyc_threads_attach_1(%input0: tensor<16xi64>) -> (%output0: tensor<16xi64>)"}} {
  %zero = arith.constant 0 : index
  %bytes = arith.constant 128 : index
  %in = stream.tensor.import on(AFFINITY) %given : !hal.buffer_view -> tensor<16xi64> in !stream.resource<external>{%bytes}
  %out, %allocated = stream.resource.alloca uninitialized on(AFFINITY) : !stream.resource<external>{%bytes} => !stream.timepoint
  %ran = stream.cmd.execute on(AFFINITY) await(%allocated) => with(%in as %from: !stream.resource<external>{%bytes}, %out as %to: !stream.resource<external>{%bytes}) {
    stream.cmd.dispatch @pyc_threads_attach_1_code::@pyc_threads_attach_1_code {
      ro %from[%zero for %bytes] : !stream.resource<external>{%bytes},
      wo %to[%zero for %bytes] : !stream.resource<external>{%bytes}
    }
  } => !stream.timepoint
  %made = stream.timepoint.await %ran => %out : !stream.resource<external>{%bytes}
  %told = stream.tensor.export on(AFFINITY) %made : tensor<16xi64> in !stream.resource<external>{%bytes} -> !hal.buffer_view
  util.return %told : !hal.buffer_view
}

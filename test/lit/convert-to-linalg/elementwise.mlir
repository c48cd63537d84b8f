// Elementwise ops: one scalar op each, numpy's broadcasting in the maps, 16-bit floats in f32.
// RUN: pyc-opt %s --convert-pyc-to-linalg | filecheck %s

// CHECK-DAG: #[[ROWS:.*]] = affine_map<(d0, d1) -> (d0)>
// CHECK-DAG: #[[ALL:.*]] = affine_map<(d0, d1) -> (d0, d1)>

// CHECK-LABEL: func.func @broadcast
// CHECK: %[[COLUMN:.*]] = tensor.collapse_shape %arg0 {{.*}} : tensor<3x1xf32> into tensor<3xf32>
// CHECK: linalg.generic {indexing_maps = [#[[ROWS]], #[[ALL]], #[[ALL]]]
// CHECK-SAME: ins(%[[COLUMN]], %arg1 : tensor<3xf32>, tensor<3x5xf32>)
// CHECK: arith.mulf
func.func @broadcast(%x: tensor<3x1xf32>, %y: tensor<3x5xf32>) -> tensor<3x5xf32> {
  %0 = "pyc.mul"(%x, %y) : (tensor<3x1xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
  return %0 : tensor<3x5xf32>
}

// CHECK-LABEL: func.func @halves
// CHECK: arith.extf %{{.*}} : bf16 to f32
// CHECK: math.exp {{.*}} : f32
// Rounded as an integer: code generation would leave a truncf out before the next extf.
// CHECK-NOT: arith.truncf
// CHECK: arith.cmpf uno
// CHECK: arith.trunci %{{.*}} : i32 to i16
// CHECK: arith.bitcast %{{.*}} : i16 to bf16
func.func @halves(%x: tensor<4xbf16>) -> tensor<4xbf16> {
  %0 = "pyc.exp"(%x) : (tensor<4xbf16>) -> tensor<4xbf16>
  return %0 : tensor<4xbf16>
}

// The machine's division would trap on x/0 and MIN/-1.
// CHECK-LABEL: func.func @integers
// CHECK: %[[SAFE:.*]] = arith.select
// CHECK: arith.divsi %{{.*}}, %[[SAFE]]
func.func @integers(%x: tensor<4xi32>, %y: tensor<4xi32>) -> tensor<4xi32> {
  %0 = "pyc.div"(%x, %y) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// fptosi is undefined outside the range: what is outside saturates.
// CHECK-LABEL: func.func @saturates
// CHECK: arith.cmpf oge
// CHECK: arith.cmpf olt
// CHECK: arith.cmpf uno
// CHECK: arith.fptosi %{{.*}} : f32 to i8
func.func @saturates(%x: tensor<4xf32>) -> tensor<4xi8> {
  %0 = "pyc.cast"(%x) {dtype = i8} : (tensor<4xf32>) -> tensor<4xi8>
  return %0 : tensor<4xi8>
}

// A composite op is one op, and a constant of one value stands in its body.
// CHECK-LABEL: func.func @composite
// CHECK-COUNT-1: linalg.generic
// CHECK-NOT: linalg.generic
// CHECK: return
func.func @composite(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "pyc.silu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

from functools import partial

import pytest
import torch

import reference
from glf.constrain.adc import kernels
from reference import draw, entrywise

T_SCALES = ("printed", "scale", "matched")
OF_A_MATRIX = {"log_gaussian": (kernels.log_gaussian, partial(entrywise, reference.log_gaussian))}
for rho, dim, divide in ((5.0, 16.0, True), (3.0, 2.0, False), (2.1, 64.0, True)):
    student = partial(reference.log_student, rho=rho, dim=dim, divide=divide)
    ours = partial(kernels.log_student, rho=rho, dim=dim, divide=divide)
    OF_A_MATRIX[f"log_student-{rho}-{divide}"] = (ours, partial(entrywise, student))
for t_scale in T_SCALES:
    scaled = partial(reference.scale_for_student, rho=3.0, t_scale=t_scale)
    factor = kernels.student_factor(rho=3.0, t_scale=t_scale)
    OF_A_MATRIX[f"student_factor-{t_scale}"] = (partial(torch.mul, other=factor), partial(entrywise, scaled))


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("name", OF_A_MATRIX)
def test_functions_of_a_matrix(name, n):
    function, loops = OF_A_MATRIX[name]
    reference.check(function, loops, draw(n, n, seed=n).abs())


@pytest.mark.parametrize("shape", [(2, 1), (3, 2), (7, 4)], ids=str)
def test_squared_distances(shape):
    reference.check(kernels.squared_distances, reference.squared_distances, 3 * draw(*shape) + 5)


def test_views_do_not_mix():
    views = draw(3, 4, 4)
    expected = torch.stack([kernels.squared_distances(view) for view in views])
    torch.testing.assert_close(kernels.squared_distances(views), expected, rtol=1e-12, atol=1e-12)


def test_an_offset_costs_no_digits():
    z = draw(6, 3).float()
    near, far = kernels.squared_distances(z), kernels.squared_distances(z + 4096)
    torch.testing.assert_close(far, near, rtol=0, atol=0.02)  # the sum itself rounds z to 5e-4


def test_duplicates_are_at_distance_zero_with_gradient_zero():
    z = draw(1, 5).expand(4, 5).clone().requires_grad_()
    distances = kernels.squared_distances(z)
    distances.sum().backward()
    assert not distances.any()
    torch.testing.assert_close(z.grad, torch.zeros_like(z), rtol=0, atol=1e-12)


def test_the_student_kernel_becomes_the_gaussian_kernel_as_rho_grows():
    d = kernels.squared_distances(draw(6, 3))
    gaussian, student = kernels.log_gaussian(d), kernels.log_student(d, rho=1e9, dim=3)
    torch.testing.assert_close(student, gaussian, rtol=1e-7, atol=0)
